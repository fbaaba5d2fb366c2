"""The team: any size at run time, no lost or doubled work, sleep, closing, interruption."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from edgeinfer.backends.cpu.jit import KernelLibrary
from edgeinfer.backends.cpu.team import Team
from edgeinfer.errors import BadSetting, EngineClosed
from tests.unit.backends.cpu.team_kernels import Cells


@contextlib.contextmanager
def team_of(n_workers: int, library: KernelLibrary, cores: tuple[int, ...] = ()) -> Iterator[Team]:
    team = Team(n_workers, cores, library)
    try:
        yield team
    finally:
        team.close()


def edgeinfer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("edgeinfer-")]


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_every_worker_takes_part_in_every_run(library: KernelLibrary, n_workers: int) -> None:
    cells = Cells.new()
    tape = cells.tape(library, rounds=3)
    with team_of(n_workers, library) as team:
        for number in range(100):
            cells.number[0] = 1000 * number
            team.run(tape)
            assert cells.right(n_workers)


def test_many_launches_with_changing_team_sizes(library: KernelLibrary) -> None:
    """Also alternates tapes with different numbers of barriers, and lets workers fall asleep now and then."""
    cells = Cells.new()
    tapes = [cells.tape(library, rounds) for rounds in (1, 2, 5)]
    random = np.random.default_rng(0)
    with team_of(3, library) as team:
        for launch in range(3000):
            size = int(random.integers(1, 4))
            cells.number[0] = 100 * launch
            cells.seen[:] = -1
            team.run(tapes[launch % 3], size)
            assert cells.right(size)
            assert np.all(cells.seen[size:64] == -1)
            if launch % 1000 == 999:
                time.sleep(0.05)


def test_a_late_worker_is_waited_for(library: KernelLibrary) -> None:
    for late in range(3):
        cells = Cells.new(late, pauses=50_000)
        tape = cells.tape(library)
        with team_of(3, library) as team:
            for number in range(1, 6):
                cells.number[0] = 10 * number
                team.run(tape)
                assert cells.right(3)


def test_idle_workers_sleep(library: KernelLibrary) -> None:
    cells = Cells.new()
    with team_of(3, library) as team:
        team.run(cells.tape(library))
        time.sleep(0.1)  # they spin for about a millisecond first
        before, start = time.process_time(), time.perf_counter()
        time.sleep(0.3)
        used, passed = time.process_time() - before, time.perf_counter() - start
        assert used < passed / 3  # two spinning workers would use it all, or twice that
        cells.number += 1
        team.run(cells.tape(library))
        assert cells.right(3)


def test_close_ends_the_threads_and_may_be_called_twice(library: KernelLibrary) -> None:
    team = Team(3, (), library)
    assert len(edgeinfer_threads()) == 2
    cells = Cells.new()
    tape = cells.tape(library)
    team.run(tape)
    team.close()
    team.close()
    assert team.closed
    assert not edgeinfer_threads()
    with pytest.raises(EngineClosed, match="closed"):
        team.run(tape)


def test_close_wakes_sleeping_workers(library: KernelLibrary) -> None:
    team = Team(2, (), library)
    time.sleep(0.1)
    team.close()
    assert not edgeinfer_threads()


@pytest.mark.parametrize("size", [0, -1, 3, 1000])
def test_impossible_team_sizes_are_refused(library: KernelLibrary, size: int) -> None:
    cells = Cells.new()
    with team_of(2, library) as team:
        with pytest.raises(BadSetting, match="1 to 2 workers"):
            team.run(cells.tape(library), size)
        team.run(cells.tape(library))
        assert cells.right(2)


def test_runs_from_several_threads_take_turns(library: KernelLibrary) -> None:
    with team_of(2, library) as team:
        wrong: list[int] = []

        def use(first: int) -> None:
            cells = Cells.new()
            tape = cells.tape(library)
            for number in range(first, first + 300):
                cells.number[0] = number
                team.run(tape)
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
def test_an_exception_of_a_signal_handler_leaves_the_team_as_it_was(library: KernelLibrary) -> None:
    """Wherever in a run it strikes, the next runs have all their barriers and no close hangs."""

    def strike(number: int, frame: object) -> None:
        raise Interrupted

    cells = Cells.new(late=1, pauses=3_000)
    tape = cells.tape(library, rounds=3)
    before = signal.signal(signal.SIGALRM, strike)
    strikes = 0
    try:
        with team_of(2, library) as team:
            for attempt in range(200):
                with contextlib.suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 20e-6 + attempt * 5e-6)
                    strikes += 1
                    for _ in range(50):
                        team.run(tape)
                    strikes -= 1
                    signal.setitimer(signal.ITIMER_REAL, 0)
                cells.number += 10
                team.run(tape)
                assert cells.right(2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert strikes > 20


@pytest.mark.parametrize("after", [True, False], ids=["after the run", "before the run"])
@pytest.mark.parametrize("close", [True, False], ids=["then close", "then run"])
def test_an_interruption_beside_the_run_of_worker_0(
    library: KernelLibrary, monkeypatch: pytest.MonkeyPatch, after: bool, close: bool
) -> None:
    cells = Cells.new(late=1, pauses=3_000)
    tape = cells.tape(library, rounds=3)
    with team_of(2, library) as team:
        run_tape = team._run_tape

        def interrupted(control: int, worker: int) -> None:
            if after or worker != 0:
                run_tape(control, worker)
            if worker == 0:
                raise Interrupted

        with monkeypatch.context() as patch, contextlib.suppress(Interrupted):
            patch.setattr(team, "_run_tape", interrupted)
            team.run(tape)
        if close:
            team.close()
            assert not edgeinfer_threads()
            return
        for number in range(1, 20):
            cells.number[0] = 10 * number
            team.run(tape)
            assert cells.right(2)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are pinned on Linux only")
def test_the_caller_is_pinned_only_while_it_works(library: KernelLibrary) -> None:
    import os

    allowed = os.sched_getaffinity(0)
    first = min(allowed)
    with team_of(2, library, (first, first)) as team:
        cells = Cells.new()
        for _ in range(5):
            cells.number += 1
            team.run(cells.tape(library))
            assert cells.right(2)
            assert os.sched_getaffinity(0) == allowed
