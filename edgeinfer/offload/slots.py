"""Slots of memory that bundles are read into, by threads, in the order that one thread says.

In: bundles by number, memory in slots. Out: which number each slot holds. What is wanted next has the lowest order;
from GUESS on nobody waits for it. Two ways: `Slots` reads through a `BundleSource`, wherever that reads from;
`compiled_slots.CompiledSlots` without the interpreter, from a file. Knows nothing of why something is wanted.
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
    """What is in slots, and what shall be: int64[n_slots] each.

    held    the number that each holds, NOBODY, or BROKEN where reading it failed
    orders  0 where nothing is to be read, FLYING where something is being read
    tags    the number to be read
    ranks   the lowest may be filled anew first,
    turns   those whose turn comes later are taken before others that rank hardly lower,
    barred  if it is not barred: 0 for those that are not at all
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
    """What fills slots. One thread uses it, and may be interrupted between any two steps."""

    slots: SlotStates

    def take_turns(self, turn: int, n_turns: int, step: int) -> None:
        """It is one turn of several, which come again and again; ranks are lower by `step` for each until then."""

    def want(self, slots: Sequence[int], order: int) -> None:
        """Read the tags of idle slots, in this order; of those that wait already only the order changes."""

    def drop(self, slots: Sequence[int]) -> None:
        """No longer read these, but for those that are being read."""

    def least(self, most: int) -> int:
        """The idle slot with the lowest rank of those barred by `most` or less; -1 where there is none."""

    def settle(self, slots: Sequence[int]) -> None:
        """Wait until nothing is to be read into these, and nothing is being read. Raises EngineClosed."""

    @property
    def read_s(self) -> float:
        """Seconds in which anything was being read."""

    @property
    def counts(self) -> Numbers:
        """int64[numbers]: how often each was read."""

    def close(self) -> None:
        """Stop reading. Safe to call twice."""


class Slots:
    """Filled through a source, by threads that hold the interpreter between two reads."""

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
            except BaseException:  # whoever needs it reads it again, and raises
                held = BROKEN
            with self._lock:
                self._busy.end()
                self._counts[number] += held == number
                self.slots.held[slot], self.slots.orders[slot] = held, 0
                self._arrived.ring()
