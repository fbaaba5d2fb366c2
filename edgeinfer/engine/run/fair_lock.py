"""A reentrant lock that is handed to the thread that has waited longest.

`threading.RLock` lets a thread that releases it and reacquires it at once starve all others, which a loop over passes
of a model does. Knows nothing of what it guards.
"""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """Use it with `with`. The owning thread must release it as often as it acquired it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._gates: deque[tuple[int, threading.Lock]] = deque()

    @property
    def is_held(self) -> bool:
        """Whether the calling thread holds it."""
        return self._owner == threading.get_ident()

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock; returns whether it did. Without `blocking`, a finalizer may call it at any point."""
        me = threading.get_ident()
        if self._owner == me:
            self._depth += 1
            return True
        if not blocking:
            return self._take_if_free(me)
        gate = threading.Lock()
        gate.acquire()
        entry = me, gate
        try:
            with self._guard:
                if self._owner is None:
                    self._owner, self._depth = me, 1
                    return True
                self._gates.append(entry)
            gate.acquire()
        except BaseException:  # a signal handler raised while this thread waited
            self._give_up(me, gate)
            raise
        return True

    def release(self) -> None:
        """Release the lock and hand it to the thread that has waited longest."""
        if self._owner != threading.get_ident():
            raise RuntimeError("a lock can only be released by the thread that holds it")
        self._depth -= 1
        if not self._depth:
            self._hand_over()

    def __enter__(self) -> FairLock:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _take_if_free(self, me: int) -> bool:
        if not self._guard.acquire(blocking=False):
            return False
        try:
            if self._owner is not None:
                return False
            self._owner, self._depth = me, 1
            return True
        finally:
            self._guard.release()

    def _hand_over(self) -> None:
        with self._guard:
            if self._gates:
                (self._owner, gate), self._depth = self._gates.popleft(), 1
                gate.release()
            else:
                self._owner = None

    def _give_up(self, me: int, gate: threading.Lock) -> None:
        """Stop waiting; if the lock was handed to this thread meanwhile, pass it on to the next one."""
        with self._guard:
            if (me, gate) in self._gates:
                self._gates.remove((me, gate))
        if self._owner == me:
            self._hand_over()
