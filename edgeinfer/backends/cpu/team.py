"""The team: our own pinned worker threads, which spin briefly for the next tape and then sleep.

In: a tape and a team size. The calling thread takes part as worker 0, so a step costs no hand-over; it is pinned only
while it works. Workers hold no interpreter lock while they compute or spin. Knows nothing of kernels.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

import numpy as np

from edgeinfer.backends.cpu.jit import KernelLibrary
from edgeinfer.backends.cpu.kernels import crew, launch
from edgeinfer.backends.cpu.step import address
from edgeinfer.backends.cpu.tape import Tape
from edgeinfer.errors import BadSetting, EngineClosed

SPINS_BEFORE_SLEEP = 30_000
"""About a millisecond: longer than the pause between two decoded tokens."""


class Team:
    """`n_workers` threads, the caller's included. Close it to stop them."""

    def __init__(self, n_workers: int, cores: tuple[int, ...], library: KernelLibrary) -> None:
        self.n_workers = n_workers
        self._cores = cores
        self._control = np.zeros(1, launch.CONTROL)
        self._flags = np.zeros(n_workers * launch.LINE, np.uint8)
        self._crew = np.zeros(n_workers + 2, np.int64)
        self._control["flags"], self._control["crew"] = address(self._flags), address(self._crew)
        self._yield = _yield_function()
        self._control["yield_at"] = ctypes.cast(self._yield, ctypes.c_void_p).value
        self._run_tape = library.function("void(intp, int64)", launch.run_tape)
        self._launch = library.function("void(intp, intp, int64, int64, int64)", launch.launch)
        self._wait = library.function("int64(intp, int64, int64)", launch.wait_for_launch)
        self._wake = threading.Condition()
        self._busy = threading.Lock()
        self._tape: Tape | None = None  # the last one, kept alive for workers that are still leaving it
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"edgeinfer-{worker}", daemon=True)
            for worker in range(1, n_workers)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, tape: Tape, team: int | None = None) -> None:
        """Run a tape once with the first `team` workers (default: all).

        Raises EngineClosed after `close()`, BadSetting for a team there is not. An exception that a signal handler
        raises meanwhile passes through; the next run is as good as any.
        """
        size = self.n_workers if team is None else team
        if not 1 <= size <= self.n_workers:
            raise BadSetting(f"a team of {size} was asked for; this model has 1 to {self.n_workers} workers")
        with self._busy:
            if self.closed:
                raise EngineClosed("the model is closed; load it again")
            before = _pin(self._cores[:1])
            try:
                self._finish_interrupted()
                control, self._tape = address(self._control), tape
                crew.fill(self._crew, crew.even_cuts(size))
                self._launch(control, address(tape.entries), len(tape.entries), tape.n_barriers, size)
                with self._wake:
                    self._wake.notify_all()
                self._run_tape(control, 0)
            finally:
                _pin(before)

    def _finish_interrupted(self) -> None:
        """Run worker 0's part of a launch that was published but not run because a signal came between."""
        if self._control["finished"][0] != self._control["launch"][0]:
            self._run_tape(address(self._control), 0)

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return bool(self._control["stopping"][0])

    def _work(self, worker: int) -> None:
        _pin(self._cores[worker : worker + 1])
        control, seen = address(self._control), 0
        while True:
            found = self._wait(control, seen, SPINS_BEFORE_SLEEP)
            while found == seen:
                with self._wake:
                    found = int(self._control["launch"][0])
                    if found == seen:
                        self._wake.wait()
            seen = found
            if self.closed:
                return
            if worker < seen % launch.TEAM_LIMIT:  # else this launch may be over and the record hold the next one
                self._run_tape(control, worker)

    def close(self) -> None:
        """Stop and join the workers. Safe to call twice."""
        with self._busy:
            if self.closed:
                return
            self._finish_interrupted()
            self._control["stopping"] = 1
            self._control["launch"] += launch.TEAM_LIMIT
            with self._wake:
                self._wake.notify_all()
        for thread in self._threads:
            thread.join()


def _pin(cores: tuple[int, ...]) -> tuple[int, ...]:
    """Pin the calling thread to cores where the system can; returns the cores it was allowed before."""
    if sys.platform != "linux" or not cores:
        return ()
    before = tuple(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores)
    return before


def _yield_function() -> Any:
    """The C function that gives up the core."""
    if sys.platform == "win32":
        return ctypes.windll.kernel32.SwitchToThread
    return ctypes.CDLL(None).sched_yield
