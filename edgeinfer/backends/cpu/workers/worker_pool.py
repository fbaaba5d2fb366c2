"""The worker pool: pinned worker threads that spin briefly for the next tape and then sleep.

In: a tape and a work split. The calling thread takes the place of the work split's first worker, so a step needs no
hand-over between threads; it is pinned only while it works. Systems without pinning run threads where they like.
Threads hold no interpreter lock while they compute or spin. Knows nothing of kernels.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import WHOLE, Timing, WorkSplit
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.errors import BadSetting, EngineClosed
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import address

_C = ctypes.CDLL(None) if sys.platform == "linux" else None


def pin(cores: Collection[int]) -> None:
    """Let the calling thread run on these cores only."""
    if sys.platform == "linux" and cores:
        os.sched_setaffinity(0, cores)


class Pin:
    """Pins a thread for a while. If a signal handler raises at any point, `release` restores the state."""

    def __init__(self) -> None:
        self._thread = 0
        self._before: Collection[int] = ()

    def hold(self, cores: Collection[int]) -> None:
        """Let the calling thread run on these cores only, until `release`."""
        if sys.platform != "linux" or not cores:
            return
        thread = threading.get_ident()
        if not self._before or self._thread != thread:  # otherwise the last release was interrupted
            self._thread, self._before = thread, os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)

    def release(self) -> None:
        """Let the calling thread run where it could before `hold`, if it was held."""
        if sys.platform == "linux" and self._before and self._thread == threading.get_ident():
            os.sched_setaffinity(0, self._before)
            self._before = ()


def running_on() -> int:
    """The core that the calling thread runs on now; -1 if the system does not report it."""
    return int(_C.sched_getcpu()) if _C is not None else -1


def yield_function() -> Any:
    """The C function that yields the core."""
    if sys.platform == "win32":
        return ctypes.windll.kernel32.SwitchToThread
    return ctypes.CDLL(None).sched_yield


PATIENCE_S = 0.005
"""How long a thread spins for the next tape before it sleeps: longer than the pause between two decoded tokens."""
CALIBRATION_S = 0.001
"""Shortest time over which the rate of the time stamp counter is measured."""
CLOCK_PAIRS = 5
"""How often both clocks are read for one moment."""


class Entries(Protocol):
    """A tape: int64[n, ENTRY_INTS], and whatever its entries point to."""

    @property
    def entries(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Seconds of each worker in each entry of a tape, float64[workers, entries].

    `waiting` at the barrier before an entry, `busy` in its call.
    """

    waiting: NDArray[np.float64]
    busy: NDArray[np.float64]


class _Seating:
    """A work split as the compiled loops read it."""

    def __init__(self, work_split: WorkSplit) -> None:
        self.work_split = work_split
        self._members = np.array(work_split.workers, np.int64)
        self._shares = records.work_split_record(work_split.cuts)
        self.addresses = address(self._shares), address(self._members)


class WorkerPool:
    """`n_workers` threads, the caller's included, placed on `cores` in order. Close it to stop them."""

    def __init__(self, n_workers: int, cores: tuple[int, ...], library: KernelLibrary) -> None:
        self.n_workers = n_workers
        self.cores = cores
        self._lead = library.function(catalogue.LEAD)
        self._serve = library.function(catalogue.SERVE)
        self._doze = library.function(catalogue.DOZE)
        self._clock = _TickClock(library)
        self._flags = np.zeros(n_workers * records.LINE, np.uint8)
        self._meters = np.zeros(n_workers, records.METER)
        self._busy = self._meters["busy"]
        self._seats, self._asleep = np.zeros(n_workers, np.int64), np.zeros(n_workers, np.int64)
        self._slowness = np.full(n_workers, records.NOT_SLOWED)
        self._record = np.zeros((0, 0, 2), np.int64)
        self._yield, self._pin = yield_function(), Pin()
        self._control = self._new_control()
        self._control_at = address(self._control)
        self._launched, self._finished, self._stopping = (
            self._control[name] for name in ("launch", "finished", "stopping")
        )
        self._all = WorkSplit.even(n_workers)
        self._seating = _Seating(self._all)
        self._tape: Entries | None = None  # the last one, kept alive for threads that are still leaving it
        self._tape_at = 0, 0
        self.seconds = 0.0
        """Seconds of the last run."""
        self.patience_s = PATIENCE_S
        """How long threads wait for the next run before they sleep."""
        self._n_sharing = 0
        self._running = threading.Lock()
        # `with` uses these locks, not their conditions, so a signal handler's exception cannot come in between
        self._wake_locks = [threading.Lock() for _ in range(n_workers)]
        self._wake = [threading.Condition(lock) for lock in self._wake_locks]
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"edgeinfer-{number}", daemon=True)
            for number in range(1, n_workers)
        ]
        for thread in self._threads:
            thread.start()

    def _new_control(self) -> NDArray[np.void]:
        control = np.zeros(1, records.CONTROL)
        control["launch_at"] = address(control)
        control["flags"], control["meters"] = address(self._flags), address(self._meters)
        control["seats"], control["asleep"] = address(self._seats), address(self._asleep)
        control["yield_at"] = ctypes.cast(self._yield, ctypes.c_void_p).value
        return control

    def share(self) -> WorkerPool:
        """The same worker pool for one more user; the threads stop when all users have closed it."""
        self._n_sharing += 1
        return self

    def run(self, tape: Entries, work_split: WorkSplit | None = None) -> None:
        """Run a tape once with a work split (default: all workers, equal shares).

        Raises EngineClosed after `close()`, BadSetting for an invalid work split. An exception of a signal handler
        passes through; the next run is not affected by it.
        """
        with self._running:
            self._run(tape, self._all if work_split is None else work_split)

    def profile(self, tape: Entries, work_split: WorkSplit | None = None) -> CallTimes:
        """Run a tape once and time each of its calls. Slower than `run`: for measurements."""
        work_split = self._all if work_split is None else work_split
        with self._running:
            self._record = np.zeros((len(work_split.workers), len(tape.entries), 2), np.int64)
            self._control["record"] = address(self._record)
            try:
                self._run(tape, work_split)
            finally:
                self._finish_interrupted()
                self._control["record"] = 0
        waiting, busy = np.moveaxis(self._record, 2, 0) * self._clock.seconds_per_tick()
        return CallTimes(waiting, busy)

    def settle(self) -> None:
        """Finish an interrupted run. Call it before anything that the run reads or writes is changed."""
        if self._finished[0] != self._launched[0]:
            with self._running:
                self._finish_interrupted()

    def _run(self, tape: Entries, work_split: WorkSplit) -> None:
        if self.closed:
            raise EngineClosed("the model is closed; load it again")
        self._finish_interrupted()
        if tape is not self._tape:
            self._tape, self._tape_at = tape, (address(tape.entries), len(tape.entries))
        if work_split is not self._seating.work_split:
            self._seating = _Seating(_checked(work_split, self.n_workers))
        try:
            self._pin_caller(work_split)
            started = time.perf_counter()
            if self._lead(self._control_at, *self._tape_at, *self._seating.addresses):
                self._finish_interrupted()
            self.seconds = time.perf_counter() - started
        finally:
            self._pin.release()

    def _pin_caller(self, work_split: WorkSplit) -> None:
        """Pin the caller to the first worker's core until it is released, unless it is there already.

        A thread mostly stays on its core, as the other cores have their workers, and the two system calls would take a
        fiftieth of a small model's step.
        """
        core = self._core_of(work_split.workers[0])
        if not (work_split.pinned and core and running_on() == core[0]):
            self._pin.hold(core if work_split.pinned else self.cores)

    def _finish_interrupted(self) -> None:
        """Finish a launch that was published but not run: wake sleeping threads and run the caller's part."""
        if self._finished[0] != self._launched[0]:
            self._rouse(self._seating.work_split.workers[1:])
            self._lead(self._control_at, 0, 0, 0, 0)

    def _rouse(self, workers: tuple[int, ...]) -> None:
        for worker in workers:
            with self._wake_locks[worker]:
                self._wake[worker].notify()

    @property
    def timing(self) -> Timing:
        """Seconds of the last run, and how busy each worker was."""
        return Timing(self.seconds, tuple(self._busy[: len(self._seating.work_split.workers)].tolist()))

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        """The cores that the system allows each worker at present; the caller's are those it has while it works.

        () if the system does not report them or has no pinning.
        """
        if sys.platform != "linux" or not self.cores or self.closed:
            return ()
        own = (self._core_of(0),)
        try:
            return own + tuple(tuple(sorted(os.sched_getaffinity(thread.native_id or 0))) for thread in self._threads)
        except OSError:  # a thread has just ended
            return ()

    def slow_down(self, worker: int, times: float) -> None:
        """Make each call of a worker take `times` as long. For benchmarks and tests."""
        self._slowness[worker] = round(times * records.NOT_SLOWED)
        self._control["slowness"] = address(self._slowness)

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return bool(self._stopping[0])

    def _core_of(self, worker: int) -> tuple[int, ...]:
        """The core of a worker; () if no cores were given."""
        return (self.cores[worker % len(self.cores)],) if self.cores else ()

    def _work(self, worker: int) -> None:
        pin(self._core_of(worker))
        patience = seen = 0
        while True:
            seen = self._serve(self._control_at, worker, seen, patience)
            patience = int(self.patience_s / self._clock.seconds_per_tick())
            with self._wake_locks[worker]:
                while not self.closed and self._doze(self._control_at, worker) // records.WORKER_POOL_LIMIT <= seen:
                    self._wake[worker].wait()
                self._asleep[worker] = 0
            if self.closed:
                return

    def close(self) -> None:
        """Stop and join the threads, unless others share the worker pool. Safe to call twice."""
        with self._running:
            if self.closed:
                return
            self._finish_interrupted()  # the run may read memory that the caller is about to free
            if self._n_sharing:
                self._n_sharing -= 1
                return
            self._stopping[0] = 1
            self._launched += 1
            self._finished += 1
            self._rouse(tuple(range(1, len(self._wake))))
            self._pin.release()
        for thread in self._threads:
            thread.join()


class _TickClock:
    """Converts ticks of the time stamp counter to seconds."""

    def __init__(self, library: KernelLibrary) -> None:
        self._read = library.function(catalogue.READ_TICKS)
        self._started_s, self._started_ticks = self._now()

    def seconds_per_tick(self) -> float:
        """Seconds per tick, measured since this clock was made."""
        if (passed := time.perf_counter() - self._started_s) < CALIBRATION_S:
            time.sleep(CALIBRATION_S - passed)
        seconds, ticks = self._now()
        return (seconds - self._started_s) / (ticks - self._started_ticks)

    def _now(self) -> tuple[float, int]:
        """Seconds and ticks of one moment: the closest of a few pairs, as the thread may be set aside within a pair."""
        tries = [(time.perf_counter(), self._read(), time.perf_counter()) for _ in range(CLOCK_PAIRS)]
        before, ticks, after = min(tries, key=lambda each: each[2] - each[0])
        return (before + after) / 2, ticks


def _checked(work_split: WorkSplit, n_workers: int) -> WorkSplit:
    """Return the work split. Raises BadSetting if it is invalid."""
    size, workers = len(work_split.workers), sorted(set(work_split.workers))
    if not 1 <= size <= n_workers or workers != list(work_split.workers) or workers[0] < 0 or workers[-1] >= n_workers:
        raise BadSetting(
            f"a work split of workers {work_split.workers} was asked for; this model has 1 to {n_workers} workers"
        )
    if len(work_split.cuts) != size + 1 or list(work_split.cuts) != sorted(work_split.cuts):
        raise BadSetting(
            f"{size} workers cannot take shares cut at {work_split.cuts}: they need {size + 1}, increasing"
        )
    if (work_split.cuts[0], work_split.cuts[-1]) != (0, WHOLE):
        raise BadSetting(
            f"shares must begin at 0 and end at {WHOLE}, not {work_split.cuts[0]} and {work_split.cuts[-1]}"
        )
    return work_split
