"""Keeping OpenVINO's threads on chosen cores, which it has no property for.

In: cores. Out: nothing. Threads of this process that are not Python's and were not there when the device was opened are
taken for OpenVINO's; they are moved once they have started, which they do during the first steps. Works on Linux only;
elsewhere OpenVINO's threads go where the system puts them.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from edgeinfer.affinity import allowed_cpus, require_cpus
from edgeinfer.backends.base import DeviceOptions

TASKS = Path("/proc/self/task")
STARTING_STEPS = 2
"""Steps in which OpenVINO starts threads."""


def chosen_cores(options: DeviceOptions) -> tuple[int, ...]:
    """The cores to stay on; () where all will do. Raises BadSetting for one there is not."""
    if options.cores is None:
        return ()
    require_cpus(options.cores)
    return () if set(options.cores) == set(allowed_cpus()) else tuple(options.cores)


class Placing:
    """Moves the threads of one device; `after_step` is told of each step that ended."""

    def __init__(self, options: DeviceOptions) -> None:
        """Notes the threads there are: call it before OpenVINO is started. Raises BadSetting."""
        self._cores = chosen_cores(options)
        self._others = _native_threads() if self._cores else set()
        self._steps_left = STARTING_STEPS if self._cores else 0

    def expect_threads(self) -> None:
        """Another graph was compiled, which may start threads of its own."""
        self._steps_left = STARTING_STEPS if self._cores else 0

    def after_step(self) -> None:
        """Move what has started, as long as threads may have."""
        if not self._steps_left or sys.platform != "linux":
            return
        self._steps_left -= 1
        for thread in _native_threads() - self._others:
            try:
                os.sched_setaffinity(thread, self._cores)
            except OSError:  # it has ended
                continue


def _native_threads() -> set[int]:
    """Threads of this process that Python did not start; none where the system does not list them."""
    if not TASKS.is_dir():
        return set()
    ours = {thread.native_id for thread in threading.enumerate()}
    return {int(entry.name) for entry in TASKS.iterdir()} - {each for each in ours if each is not None}
