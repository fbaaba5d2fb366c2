"""Memory slots that threads read bundles into, in the order that one controlling thread sets.

In: bundles by number, memory in slots. Out: which number each slot holds. The lowest order is read next; reads with an
order from GUESS on are guesses that no thread waits for. There are two implementations: `Slots` reads through any
`BundleSource`; `compiled_slots.CompiledSlots` reads from a file without the interpreter. Knows nothing of the reasons
for a read.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import EngineClosed
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.slot_records import BROKEN, FLYING, NOBODY
from edgeinfer.offload.waiting import Bell, BusyClock
from edgeinfer.offload.window import BundleSource

Numbers = NDArray[np.int64]
CLOSED = "the model is closed; load it again"


@dataclass(frozen=True, slots=True, eq=False)
class SlotStates:
    """What slots hold and what is to be read into them: int64[n_slots] each.

    held    the number that each holds, NOBODY, or BROKEN if its read failed
    orders  0 if nothing is to be read, FLYING during a read
    tags    the number to be read
    ranks   the slot with the lowest rank is refilled first
    turns   slots whose turn comes later are refilled before others whose rank is hardly lower
    barred  protection: a slot is refilled only by callers that allow its level; 0 is unprotected
    """

    n_slots: InitVar[int]
    held: Numbers = field(init=False)
    orders: Numbers = field(init=False)
    tags: Numbers = field(init=False)
    ranks: Numbers = field(init=False)
    turns: Numbers = field(init=False)
    barred: Numbers = field(init=False)

    def __post_init__(self, n_slots: int) -> None:
        for name in ("held", "orders", "tags", "ranks", "turns", "barred"):
            object.__setattr__(self, name, np.zeros(n_slots, np.int64))
        self.held[:] = NOBODY


class Filling(Protocol):
    """Fills slots. One thread uses it, which may be interrupted between any two steps."""

    slots: SlotStates

    def take_turns(self, turn: int, n_turns: int, step: int) -> None:
        """Set the turn, one of `n_turns` that repeat; a slot's rank drops by `step` for each turn until its own."""

    def want(self, slots: Sequence[int], order: int) -> None:
        """Read the tags of idle slots, in this order; slots that wait already only change their order."""

    def drop(self, slots: Sequence[int]) -> None:
        """Cancel the reads of these slots, except those that have begun."""

    def least(self, most: int) -> int:
        """The idle slot with the lowest rank among those barred by `most` or less; -1 if there is none."""

    def settle(self, slots: Sequence[int]) -> None:
        """Wait until these slots have no read pending or under way. Raises EngineClosed."""

    @property
    def read_s(self) -> float:
        """Seconds during which any read was under way."""

    @property
    def counts(self) -> Numbers:
        """int64[numbers]: how often each was read."""

    def close(self) -> None:
        """Stop reading. Safe to call twice."""


class Slots:
    """Slots filled through a source, by threads that hold the interpreter lock between two reads."""

    def __init__(
        self, source: BundleSource, bundles: Sequence[Bundle], memory: NDArray[np.uint8], n_readers: int
    ) -> None:
        self._source, self._bundles, self._memory = source, bundles, memory
        self.slots = SlotStates(len(memory))
        self._turn, self._n_turns, self._step = 0, 1, 0
        self._counts: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._arrived, self._work = Bell(), threading.Condition(self._lock)
        self._stopping = False
        self._busy = BusyClock()
        self._threads = [
            threading.Thread(target=self._read_on, name=f"edgeinfer-experts-{number}", daemon=True)
            for number in range(n_readers)
        ]
        for thread in self._threads:
            thread.start()

    def take_turns(self, turn: int, n_turns: int, step: int) -> None:
        """As in `Filling`."""
        self._turn, self._n_turns, self._step = turn, n_turns, step

    def want(self, slots: Sequence[int], order: int) -> None:
        """As in `Filling`."""
        with self._lock:
            for number, slot in enumerate(slots):
                if self.slots.orders[slot] != FLYING:
                    self.slots.orders[slot] = order + number
            self._work.notify_all()

    def drop(self, slots: Sequence[int]) -> None:
        """As in `Filling`."""
        with self._lock:
            for slot in slots:
                if self.slots.orders[slot] != FLYING:
                    self.slots.orders[slot] = 0

    def least(self, most: int) -> int:
        """As in `Filling`."""
        idle = np.flatnonzero((self.slots.orders == 0) & (self.slots.barred <= most))
        until = (self.slots.turns[idle] - self._turn - 1) % self._n_turns
        return int(idle[(self.slots.ranks[idle] - until * self._step).argmin()]) if len(idle) else -1

    def settle(self, slots: Sequence[int]) -> None:
        """As in `Filling`."""
        while any(self.slots.orders[slot] for slot in slots):
            if self._stopping:
                raise EngineClosed(CLOSED)
            self._arrived.wait()

    @property
    def read_s(self) -> float:
        """As in `Filling`."""
        with self._lock:
            return self._busy.seconds

    @property
    def counts(self) -> Numbers:
        """As in `Filling`."""
        with self._lock:
            return np.array([self._counts[number] for number in range(len(self._bundles))], np.int64)

    def close(self) -> None:
        """As in `Filling`."""
        with self._lock:
            self._stopping = True
            self._work.notify_all()
            self._arrived.ring()
        for thread in self._threads:
            thread.join()
        self._memory = self._memory[:0].copy()

    def _next(self) -> int | None:
        """The slot with the lowest order."""
        waiting = np.flatnonzero(self.slots.orders > 0)
        return int(waiting[self.slots.orders[waiting].argmin()]) if len(waiting) else None

    def _read_on(self) -> None:
        while True:
            with self._lock:
                while not self._stopping and (slot := self._next()) is None:
                    self._work.wait()
                if self._stopping:
                    return
                assert slot is not None
                self.slots.orders[slot], number = FLYING, int(self.slots.tags[slot])
                self._busy.begin()
            bundle, held = self._bundles[number], number
            try:
                self._source.read(bundle, self._memory[slot].data[: bundle.padded_bytes])
            except BaseException:  # the caller that needs it reads it again and raises the error
                held = BROKEN
            with self._lock:
                self._busy.end()
                self._counts[number] += held == number
                self.slots.held[slot], self.slots.orders[slot] = held, 0
                self._arrived.ring()
