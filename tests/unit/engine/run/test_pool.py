"""The lock of a pool goes to the thread that has waited longest, and no sequence is lost from it."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from types import FrameType

import pytest

from edgeinfer.engine.run.pool import FairLock, Pool
from edgeinfer.graph.step import join
from tests.unit.engine.scheduler.test_sequence import make_pool
from tests.waiting import until


def waits(lock: FairLock, n: int) -> bool:
    until(lambda: len(lock._gates) >= n)
    return len(lock._gates) == n


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
    with pytest.raises(RuntimeError, match="thread that holds it"):
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


def test_a_thread_that_gives_up_waiting_leaves_the_lock_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, real = FairLock(), threading.Lock

    class Interrupted:
        """A gate at which whoever waits is interrupted; the lock may have been handed over just before."""

        def __init__(self, handed_over: bool) -> None:
            self.n, self.handed_over = 0, handed_over

        def acquire(self) -> bool:
            self.n += 1
            if self.n > 1:
                if self.handed_over:
                    owner.set()
                    released.wait(10)
                raise KeyboardInterrupt
            return True

        def release(self) -> None:
            pass

    for handed_over in (False, True):
        owner, released, holds = threading.Event(), threading.Event(), threading.Event()

        def hold(owner: threading.Event = owner, released: threading.Event = released, holds: threading.Event = holds):
            with lock:
                holds.set()
                owner.wait(10)
            released.set()

        thread = threading.Thread(target=hold)
        thread.start()
        holds.wait(10)
        monkeypatch.setattr(threading, "Lock", lambda handed_over=handed_over: Interrupted(handed_over))
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
        monkeypatch.setattr(threading, "Lock", real)
        owner.set()
        thread.join()
        assert lock.acquire(blocking=False)
        lock.release()


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
