"""An answer's place among others: what it waits for, what was made of it and not taken, and who is to be woken.

In: an answer that has not begun. Out: pieces of its text, in order. The scheduler fills it, whoever asked for the
answer empties it; both may be different threads. Knows no passes and no memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from edgeinfer.engine.scheduler.answering import Answer, BatchWork
from edgeinfer.scheduling.serving.priority import AGED_S, Priority, rank

State = Literal["waiting", "active", "over"]

AHEAD = 16
"""Pieces that are made for somebody who does not ask for them, while others are."""


class Waiter:
    """A thread that sleeps until there is something new."""

    def __init__(self) -> None:
        self.is_awaited = False
        self._woken = threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Sleep until `wake`, or for so long."""
        self._woken.wait(timeout_s)
        self._woken.clear()

    def wake(self) -> None:
        """There is something new."""
        if self.is_awaited:
            self._woken.set()


class Ticket:
    """One answer in a scheduler. `released` is called when it is over, by whoever leads then, under the engine's lock.

    `notify`: called by whoever leads when there are pieces, or the answer is over; it must not wait. None: whoever
    sleeps in `waiter` is woken. `is_driven`: it is made as fast as can be, whether somebody asks for pieces or not.
    """

    def __init__(
        self,
        answer: Answer,
        priority: Priority = "interactive",
        *,
        shares_prefix: bool = False,
        is_driven: bool = False,
        drafts: bool = False,
        released: Callable[[Ticket], None] | None = None,
        notify: Callable[[], None] | None = None,
    ) -> None:
        self.answer = answer
        self.priority: Priority = priority
        self.shares_prefix = shares_prefix
        """Whether it may begin with what is cached of other answers."""
        self.is_driven = is_driven
        self.drafts = drafts
        """Whether it drafts where there is room for that."""
        self.released = released
        self.waiter = Waiter()
        self.notify = notify or self.waiter.wake
        self.number = 0  # in order of arrival
        self._waits_since_s = time.monotonic()
        self._stays_until_s = 0.0
        self.state: State = "waiting"
        self.has_entered = self.has_begun = self.is_dropped = self.is_left = False
        self.work: BatchWork | None = None  # that is under way
        self.n_pages = 0
        """Pages that room is kept for; 0: as many as are usual."""
        self.last_pass = 0
        self.error: BaseException | None = None
        self.failed_alone = False
        """Whether what went wrong was its own, and no failure of a pass or of the model."""
        self.n_preempted = 0
        """How often its memory was taken."""
        self.n_taken = 0
        """Tokens of the answer whose text was taken."""
        self._pieces: deque[tuple[str, int]] = deque()  # with how many tokens are taken with it

    @property
    def is_over(self) -> bool:
        return self.state == "over"

    @property
    def is_interactive(self) -> bool:
        return self.priority == "interactive"

    @property
    def sequence(self) -> int:
        return self.answer.cached.sequence

    @property
    def is_wanted(self) -> bool:
        """Whether a pass should go on with it."""
        return self.is_driven or len(self._pieces) < AHEAD

    @property
    def has_pieces(self) -> bool:
        return bool(self._pieces)

    def is_ready(self) -> bool:
        """Whether there is something to take, or nothing will be."""
        return bool(self._pieces) or self.state == "over"

    def rank(self, now_s: float) -> int:
        """By which those that wait begin, and others give way to them; who has waited long stays a while."""
        if self.state == "active":
            return rank(self.priority, AGED_S if now_s < self._stays_until_s else 0.0)
        return rank(self.priority, now_s - self._waits_since_s)

    def is_interactive_now(self, now_s: float) -> bool:
        """Whether nobody goes before it: somebody looks at it, or it has waited long."""
        return self.rank(now_s) == rank("interactive", 0.0)

    def go_on(self, now_s: float) -> None:
        """It begins, or has its memory back."""
        if now_s - self._waits_since_s >= AGED_S:
            self._stays_until_s = now_s + AGED_S

    def preempt(self, now_s: float) -> None:
        """Its memory was taken."""
        self.state, self._waits_since_s = "waiting", now_s
        self.n_preempted += 1

    def add(self, piece: str) -> None:
        """Some more text was made."""
        if piece:
            self._pieces.append((piece, self.answer.n_generated))

    def take(self) -> str | None:
        """The next piece, if there is one."""
        try:
            piece, self.n_taken = self._pieces.popleft()
        except IndexError:
            return None
        return piece

    @property
    def n_seen(self) -> int | None:
        """Tokens of the answer whose text was taken; None: all of them, and the rest of the text."""
        return None if self.is_over and not self._pieces else self.n_taken

    def drop_rest(self) -> None:
        """Nobody will take any more: the answer ends where its text was taken."""
        self.is_dropped = True
        if self._pieces:
            self._pieces.clear()
            self.answer.keep(self.n_taken)

    def take_all(self) -> str:
        """Everything that was made since the last time."""
        found = []
        while (piece := self.take()) is not None:
            found.append(piece)
        return "".join(found)
