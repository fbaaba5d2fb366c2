"""The lock of a pool goes to the thread that has waited longest, and no sequence is lost from it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import pytest

from edgeinfer.engine.run.pool import FairLock, Pool
from edgeinfer.graph.step import join
from tests.unit.engine.scheduler.test_sequence import make_pool
from tests.waiting import until


def waits(lock: FairLock, n: int) -> bool:
    until(lambda: len(lock._queue) >= n)
    return len(lock._queue) == n


def test_its_owner_may_take_it_again_and_others_only_then() -> None:
    lock, got = FairLock(), []
    with lock, lock:
        assert lock.acquire(blocking=False)
        lock.release()
        thread = threading.Thread(target=lambda: got.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        assert got == [False]
    thread = threading.Thread(target=lambda: got.append(lock.acquire(blocking=False) and lock.release() is None))
    thread.start()
    thread.join()
    assert got == [False, True]


def test_it_goes_to_whoever_has_waited_longest_and_not_to_who_takes_it_again_at_once() -> None:
    lock, order = FairLock(), list[int]()

    def wait(number: int) -> None:
        with lock:
            order.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(5)]
    with lock:
        for number, thread in enumerate(threads):
            thread.start()
            assert waits(lock, number + 1)
    with lock:  # all others came first
        assert order == [0, 1, 2, 3, 4]
    for thread in threads:
        thread.join()


def test_only_its_owner_releases_it() -> None:
    with pytest.raises(RuntimeError, match="un-acquired"):
        FairLock().release()


def test_nobody_is_inside_with_another() -> None:
    lock, inside, worst = FairLock(), [0], [0]

    def work() -> None:
        for _ in range(300):
            with lock:
                inside[0] += 1
                worst[0] = max(worst[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst == [1]
    assert lock.acquire(blocking=False)


LOCKING = tuple(each.__code__ for each in (FairLock.acquire, FairLock._n_acquired, FairLock._wait, FairLock._leave))


class Broken:
    """Raises at the n-th place in `FairLock` where Python calls signal handlers: functions begin, or C has returned."""

    def __init__(self, n: int, kind: type[BaseException]) -> None:
        self.left, self.kind = n, kind

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code in LOCKING:
            self.left -= 1
            if self.left == 0:
                raise self.kind

    def run(self, act: Callable[[], object]) -> bool:
        """Whether `act` was broken off."""
        sys.setprofile(self.profile)
        try:
            act()
        except self.kind:
            return True
        finally:
            sys.setprofile(None)
        return False


def taken_elsewhere(lock: FairLock) -> bool:
    """Whether another thread can have the lock, in its turn."""
    got = list[bool]()

    def take() -> None:
        with lock:
            got.append(True)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(10)
    return got == [True]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError, RecursionError])
@pytest.mark.parametrize("nested", [False, True])
def test_what_breaks_off_taking_or_holding_it_leaves_it_as_it_was(kind: type[BaseException], nested: bool) -> None:
    lock, inside = FairLock(), False

    def take() -> None:
        nonlocal inside
        with lock:
            inside = True

    for n in range(1, 100):
        if nested:
            with lock:
                broken = Broken(n, kind).run(take)
                assert lock.is_held
        else:
            broken = Broken(n, kind).run(take)
        assert not lock.is_held
        assert taken_elsewhere(lock)
        if not broken:
            break
    assert inside
    assert 3 < n < 99


@pytest.mark.parametrize("n", range(1, 20))
def test_a_thread_that_gives_up_waiting_leaves_the_lock_to_others(n: int) -> None:
    """Broken off at any step of waiting; `holds` releases the lock as soon as this thread stands in the queue."""
    lock, holds = FairLock(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            until(lambda: len(lock._queue) > 0 or ended)

    def take() -> None:
        with lock:
            pass

    ended = list[bool]()
    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(10)
    Broken(n, KeyboardInterrupt).run(take)
    ended.append(True)
    thread.join(10)
    assert not lock.is_held
    assert not lock._queue
    assert taken_elsewhere(lock)


def test_a_full_stack_leaves_no_lock_held() -> None:
    """The deepest frame that can take the lock can also release it."""
    lock = FairLock()

    def deeper() -> None:
        with lock:
            pass
        deeper()

    with pytest.raises(RecursionError):
        deeper()
    assert not lock.is_held
    assert taken_elsewhere(lock)


def test_a_signal_at_any_line_loses_no_sequence() -> None:
    """As Ctrl-C in the midst of a pass of a draft model: its sequences are closed after that."""
    pool, before = make_pool(), sys.gettrace()
    opened = [pool.open() for _ in range(4)]
    for n_lines in range(12):
        left = [n_lines]

        def trace(frame: FrameType, event: str, argument: object, left: list[int] = left) -> object:
            if frame.f_code is not Pool.evaluate.__code__:
                return None
            left[0] -= event == "line"
            if left[0] < 0:
                raise KeyboardInterrupt
            return trace

        members = opened[n_lines % 2 :: 2]
        batch = join([member.chain([5, 6], wants_logits=True) for member in members])
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            with suppress(KeyboardInterrupt):
                pool.evaluate(members, batch)
        finally:
            sys.settrace(before)
        assert set(pool.members) == set(opened)
    for member in opened:
        member.close()
    assert pool.executor.n_free_pages == pool.executor.limits.n_pages
