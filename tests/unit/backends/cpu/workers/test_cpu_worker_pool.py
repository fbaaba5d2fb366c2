"""The worker pool: any size at run time, no lost or doubled work, sleep, closing, interruption."""

from __future__ import annotations

import contextlib
import enum
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from edgeinfer.backends.base import WHOLE, WorkSplit
from edgeinfer.backends.cpu.workers.worker_pool import CallTimes, WorkerPool
from edgeinfer.errors import BadSetting, EngineClosed
from edgeinfer.jit.library import KernelLibrary
from tests.unit.backends.cpu.worker_pool_kernels import Cells, Items
from tests.waiting import rests, until


@contextlib.contextmanager
def worker_pool_of(n_workers: int, library: KernelLibrary, cores: tuple[int, ...] = ()) -> Iterator[WorkerPool]:
    worker_pool = WorkerPool(n_workers, cores, library)
    try:
        yield worker_pool
    finally:
        worker_pool.close()


def edgeinfer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("edgeinfer-")]


def within_tries(holds: Callable[[], bool]) -> bool:
    """Whether a measurement that a busy machine may spoil comes out right once."""
    return any(holds() for _ in range(200))


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_every_worker_takes_part_in_every_run(library: KernelLibrary, n_workers: int) -> None:
    cells = Cells.new()
    tape = cells.tape(library, rounds=3)
    with worker_pool_of(n_workers, library) as worker_pool:
        for number in range(100):
            cells.number[0] = 1000 * number
            worker_pool.run(tape)
            assert cells.right(n_workers)


def test_many_launches_with_changing_worker_pool_sizes(library: KernelLibrary) -> None:
    """Also alternates tapes with different numbers of barriers, and lets workers fall asleep now and then."""
    cells = Cells.new()
    tapes = [cells.tape(library, rounds) for rounds in (1, 2, 5)]
    random = np.random.default_rng(0)
    with worker_pool_of(3, library) as worker_pool:
        for launch in range(1500):
            size = int(random.integers(1, 4))
            cells.number[0] = 100 * launch
            cells.seen[:] = -1
            worker_pool.run(tapes[launch % 3], WorkSplit.even(size))
            assert cells.right(size)
            assert np.all(cells.seen[size:64] == -1)
            if launch % 500 == 499:
                time.sleep(0.05)


def test_a_late_worker_is_waited_for(library: KernelLibrary) -> None:
    for late in range(3):
        cells = Cells.new(late, pauses=50_000)
        tape = cells.tape(library)
        with worker_pool_of(3, library) as worker_pool:
            for number in range(1, 6):
                cells.number[0] = 10 * number
                worker_pool.run(tape)
                assert cells.right(3)


def test_idle_workers_sleep(library: KernelLibrary) -> None:
    cells = Cells.new()
    with worker_pool_of(3, library) as worker_pool:
        worker_pool.run(cells.tape(library))
        assert rests(time.process_time)
        cells.number += 1
        worker_pool.run(cells.tape(library))
        assert cells.right(3)


def test_close_ends_the_threads_and_may_be_called_twice(library: KernelLibrary) -> None:
    worker_pool = WorkerPool(3, (), library)
    assert len(edgeinfer_threads()) == 2
    cells = Cells.new()
    tape = cells.tape(library)
    worker_pool.run(tape)
    worker_pool.close()
    worker_pool.close()
    assert worker_pool.closed
    assert not edgeinfer_threads()
    with pytest.raises(EngineClosed, match="closed"):
        worker_pool.run(tape)


def test_close_wakes_sleeping_workers(library: KernelLibrary) -> None:
    worker_pool = WorkerPool(2, (), library)
    time.sleep(0.1)
    worker_pool.close()
    assert not edgeinfer_threads()


@pytest.mark.parametrize(
    ("work_split", "message"),
    [
        (WorkSplit((), (0,)), "1 to 2 workers"),
        (WorkSplit.even(3), "1 to 2 workers"),
        (WorkSplit((0, 2), (0, 1, WHOLE)), "1 to 2 workers"),
        (WorkSplit((-1,), (0, WHOLE)), "1 to 2 workers"),
        (WorkSplit((1, 0), (0, 1, WHOLE)), "1 to 2 workers"),
        (WorkSplit((0, 0), (0, 1, WHOLE)), "1 to 2 workers"),
        (WorkSplit((0, 1), (0, WHOLE)), "cut at"),
        (WorkSplit((0, 1), (0, WHOLE + 1, WHOLE)), "cut at"),
        (WorkSplit((0, 1), (1, 2, WHOLE)), "begin at 0"),
        (WorkSplit((0, 1), (0, 1, WHOLE - 1)), "end at 65536"),
    ],
)
def test_impossible_work_splits_are_refused(library: KernelLibrary, work_split: WorkSplit, message: str) -> None:
    cells = Cells.new()
    with worker_pool_of(2, library) as worker_pool:
        with pytest.raises(BadSetting, match=message):
            worker_pool.run(cells.tape(library), work_split)
        worker_pool.run(cells.tape(library))
        assert cells.right(2)


def test_runs_from_several_threads_take_turns(library: KernelLibrary) -> None:
    with worker_pool_of(2, library) as worker_pool:
        wrong: list[int] = []

        def use(first: int) -> None:
            cells = Cells.new()
            tape = cells.tape(library)
            for number in range(first, first + 300):
                cells.number[0] = number
                worker_pool.run(tape)
                if not cells.right(2):
                    wrong.append(number)

        threads = [threading.Thread(target=use, args=(first,)) for first in (0, 1000, 2000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class Interrupted(Exception):
    """Raised by a signal handler, like KeyboardInterrupt."""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no timers that raise signals")
def test_an_exception_of_a_signal_handler_leaves_the_worker_pool_as_it_was(library: KernelLibrary) -> None:
    """Wherever in a run it strikes, the next runs have all their barriers and no close hangs."""

    def strike(number: int, frame: object) -> None:
        raise Interrupted

    cells = Cells.new(late=1, pauses=3_000)
    tape = cells.tape(library, rounds=3)
    before = signal.signal(signal.SIGALRM, strike)
    strikes = 0
    try:
        with worker_pool_of(2, library) as worker_pool:
            for attempt in range(200):
                with contextlib.suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 20e-6 + attempt * 5e-6)
                    strikes += 1
                    for _ in range(50):
                        worker_pool.run(tape)
                    strikes -= 1
                    signal.setitimer(signal.ITIMER_REAL, 0)
                cells.number += 10
                worker_pool.run(tape)
                assert cells.right(2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert strikes > 20


class Strike(enum.Enum):
    """Where an exception strikes, between Python and the compiled loops."""

    BEFORE_LAUNCH = enum.auto()
    AFTER_LAUNCH = enum.auto()
    BEFORE_WAKING = enum.auto()
    AFTER_WAKING = enum.auto()


@pytest.mark.parametrize("strike", Strike)
@pytest.mark.parametrize("close", [True, False], ids=["then close", "then run"])
def test_an_interruption_beside_a_launch(
    library: KernelLibrary, monkeypatch: pytest.MonkeyPatch, strike: Strike, close: bool
) -> None:
    cells = Cells.new(late=1, pauses=3_000)
    tape = cells.tape(library, rounds=3)
    with worker_pool_of(2, library) as worker_pool:
        worker_pool.run(tape)
        if strike in (Strike.BEFORE_WAKING, Strike.AFTER_WAKING):
            until(lambda: bool(worker_pool._asleep[1]))
        lead, rouse = worker_pool._lead, worker_pool._rouse

        def interrupted_lead(*arguments: int) -> int:
            if strike is Strike.AFTER_LAUNCH:
                lead(*arguments)
            raise Interrupted

        def interrupted_rouse(workers: tuple[int, ...]) -> None:
            if strike is Strike.AFTER_WAKING:
                rouse(workers)
            raise Interrupted

        with monkeypatch.context() as patch:
            if strike in (Strike.BEFORE_LAUNCH, Strike.AFTER_LAUNCH):
                patch.setattr(worker_pool, "_lead", interrupted_lead)
            else:
                patch.setattr(worker_pool, "_rouse", interrupted_rouse)
            with pytest.raises(Interrupted):
                worker_pool.run(tape)
        if close:
            worker_pool.close()
            assert not edgeinfer_threads()
            return
        for number in range(1, 20):
            cells.number[0] = 10 * number
            worker_pool.run(tape, WorkSplit.even(number % 2 + 1))
            assert cells.right(number % 2 + 1)


@pytest.mark.parametrize("workers", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_any_workers_can_make_a_work_split(library: KernelLibrary, workers: tuple[int, ...]) -> None:
    """The caller takes the place of the first; the others of the worker pool stay out of it."""
    cells = Cells.new()
    tape = cells.tape(library, rounds=2)
    work_split, everybody = WorkSplit(workers, WorkSplit.even(len(workers)).cuts), WorkSplit.even(3)
    with worker_pool_of(3, library) as worker_pool:
        for number in range(1, 200):
            cells.number[0] = 10 * number
            cells.seen[:] = -1
            worker_pool.run(tape, work_split if number % 3 else everybody)
            size = len(workers) if number % 3 else 3
            assert cells.right(size)
            assert np.all(cells.seen[size:64] == -1)
            if number % 100 == 99:
                time.sleep(0.05)


def test_workers_that_stay_out_sleep_through_other_launches(library: KernelLibrary) -> None:
    cells = Cells.new()
    tape = cells.tape(library)
    with worker_pool_of(3, library) as worker_pool:
        worker_pool.run(tape)
        until(lambda: bool(worker_pool._asleep[1] and worker_pool._asleep[2]))
        for number in range(50):
            cells.number[0] = number
            worker_pool.run(tape, WorkSplit((0, 2), WorkSplit.even(2).cuts))
            assert worker_pool._asleep[1]
        assert cells.right(2)


def test_shares_follow_the_cuts(library: KernelLibrary) -> None:
    items = Items.new(1000)
    tape = items.tape(library)
    with worker_pool_of(3, library) as worker_pool:
        for cuts in ((0, 0, 0, WHOLE), (0, WHOLE, WHOLE, WHOLE), (0, WHOLE // 10, WHOLE // 2, WHOLE)):
            items.owner[:] = -1
            worker_pool.run(tape, WorkSplit((0, 1, 2), cuts))
            counts = [int(np.sum(items.owner == worker)) for worker in range(3)]
            assert sum(counts) == 1000
            assert counts == [round((stop - start) * 1000 / WHOLE) for start, stop in itertools.pairwise(cuts)]


def test_busy_time_is_the_work_and_not_the_waiting(library: KernelLibrary) -> None:
    """A worker with a tenth of the work is busy for about a tenth of the time, though it waits for the other."""
    items = Items.new(64, pauses=2_000)
    tape = items.tape(library)
    with worker_pool_of(2, library) as worker_pool:

        def is_busy_with_its_share() -> bool:
            worker_pool.run(tape, WorkSplit((0, 1), (0, WHOLE * 9 // 10, WHOLE)))
            first, second = worker_pool.timing.busy
            assert second > 0
            return worker_pool.timing.seconds > 0 and 0.05 < second / first < 0.2

        assert within_tries(is_busy_with_its_share)


def test_calls_that_are_not_shared_out_do_not_count_as_busy(library: KernelLibrary) -> None:
    items = Items.new(64)
    tape = items.tape(library)
    tape.entries[0, 3] = 1
    with worker_pool_of(2, library) as worker_pool:
        worker_pool.run(tape)
        assert worker_pool.timing.busy == (0, 0)
        assert np.all(items.owner >= 0)


def test_a_profile_adds_up_to_the_run(library: KernelLibrary) -> None:
    cells = Cells.new(late=0, pauses=20_000)
    tape = cells.tape(library, rounds=4)
    with worker_pool_of(2, library) as worker_pool:
        found: list[CallTimes] = []

        def late_worker_is_seen() -> bool:
            """By the shortest times of all tries: what else runs on the machine makes them longer only."""
            times = worker_pool.profile(tape)
            found.append(times)
            sums = (times.busy + times.waiting).sum(axis=1)
            assert cells.right(2)
            assert times.busy.shape == times.waiting.shape == (2, 9)
            assert np.all(times.busy >= 0)
            assert np.all(times.waiting >= 0)
            adds_up = np.all(sums <= worker_pool.timing.seconds * 1.01)
            busy = np.min([each.busy for each in found], axis=0)
            late, other, reading = busy[0, ::2].sum(), busy[1, ::2].sum(), busy[:, 1::2].sum()
            waited = np.max([each.waiting[1, 1::2].sum() for each in found])
            return bool(adds_up and late > 2 * other and late > 2 * reading and waited > 0.5 * late)

        assert within_tries(late_worker_is_seen)
        worker_pool.run(tape)
        assert cells.right(2)


def test_a_slowed_worker_takes_longer_and_does_the_same(library: KernelLibrary) -> None:
    items = Items.new(64, pauses=2_000)
    tape = items.tape(library)
    with worker_pool_of(2, library) as worker_pool:
        worker_pool.slow_down(1, 3.0)

        def takes_three_times_as_long() -> bool:
            items.owner[:] = -1
            worker_pool.run(tape)
            assert np.all(items.owner[:32] == 0)
            assert np.all(items.owner[32:] == 1)
            return 2.5 < worker_pool.timing.busy[1] / worker_pool.timing.busy[0] < 3.5

        assert within_tries(takes_three_times_as_long)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are pinned on Linux only")
def test_the_caller_is_pinned_only_while_it_works(library: KernelLibrary) -> None:
    import os

    allowed = os.sched_getaffinity(0)
    first = min(allowed)
    with worker_pool_of(2, library, (first, first)) as worker_pool:
        cells = Cells.new()
        for _ in range(5):
            cells.number += 1
            worker_pool.run(cells.tape(library))
            assert cells.right(2)
            assert os.sched_getaffinity(0) == allowed


@pytest.mark.skipif(sys.platform != "linux", reason="threads are pinned on Linux only")
def test_a_caller_is_let_go_wherever_it_was_interrupted(
    library: KernelLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    allowed, set_affinity = os.sched_getaffinity(0), os.sched_setaffinity
    cells = Cells.new()
    tape = cells.tape(library)

    def interrupted(number: int, cores: Iterable[int]) -> None:
        set_affinity(number, cores)
        raise Interrupted

    with worker_pool_of(1, library, (min(allowed),)) as worker_pool:
        monkeypatch.setattr("edgeinfer.backends.cpu.workers.worker_pool.running_on", lambda: -1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "sched_setaffinity", interrupted)  # when it is pinned, and when it is let go
            with pytest.raises(Interrupted):
                worker_pool.run(tape)
        worker_pool.run(tape)
        assert os.sched_getaffinity(0) == allowed
