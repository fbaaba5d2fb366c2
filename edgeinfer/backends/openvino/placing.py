"""Pinning OpenVINO's threads to chosen cores, for which OpenVINO has no property.

In: cores. Out: nothing. Threads of this process that are not Python's and did not exist when the device was opened are
assumed to be OpenVINO's; they are pinned after they start, which happens during the first steps. Works on Linux only;
elsewhere the system places OpenVINO's threads.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.process import allowed_cpus, require_cpus

TASKS = Path("/proc/self/task")
STARTING_STEPS = 2
"""Number of first steps during which OpenVINO starts threads."""


def chosen_cores(options: DeviceOptions) -> tuple[int, ...]:
    """The cores to pin to; () for no pinning. Raises BadSetting for a core that does not exist."""
    if options.cores is None:
        return ()
    require_cpus(options.cores)
    return () if set(options.cores) == set(allowed_cpus()) else tuple(options.cores)


class Placing:
    """Pins the threads of one device; `after_step` is called after each step."""

    def __init__(self, options: DeviceOptions) -> None:
        """Records the existing threads: call it before OpenVINO is started. Raises BadSetting."""
        self._cores = chosen_cores(options)
        self._others = _native_threads() if self._cores else set()
        self._steps_left = STARTING_STEPS if self._cores else 0

    def expect_threads(self) -> None:
        """Another graph was compiled, which may start more threads."""
        self._steps_left = STARTING_STEPS if self._cores else 0

    def after_step(self) -> None:
        """Pin threads that have started, as long as more may start."""
        if not self._steps_left or sys.platform != "linux":
            return
        self._steps_left -= 1
        for thread in _native_threads() - self._others:
            try:
                os.sched_setaffinity(thread, self._cores)
            except OSError:  # it has ended
                continue


def _native_threads() -> set[int]:
    """Threads of this process that Python did not start; none if the system does not list them."""
    if not TASKS.is_dir():
        return set()
    ours = {thread.native_id for thread in threading.enumerate()}
    return {int(entry.name) for entry in TASKS.iterdir()} - {each for each in ours if each is not None}
