"""The experts of a mixture that are in memory: a cache by recency and frequency, with read-ahead based on guesses.

In: the bundles of experts by layer and number, a factory for the filling of slots, a source. Out: addresses of the
experts that a pass has chosen. Experts that are used again and again stay in memory; guesses are read only when no
pass waits for a read, and never evict experts that are worth more. Knows nothing of routers or of how slots are filled.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import EngineClosed
from edgeinfer.jit.memory import give_back
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.slot_records import GUESS, NOBODY
from edgeinfer.offload.slots import Filling
from edgeinfer.offload.weights import WeightReads

HALF_LIFE = 4
"""Number of passes of a layer after which a use counts half (least frequently used, with aging)."""
LATER = 8
"""Experts that are next needed almost a whole pass later rank as if they were this many passes older: the layers just
passed make room for the layers to come.
"""
GUESS_WORTH = 1.0
"""A guess counts as this many uses."""
MOST_GUESSES = 8
"""Most guesses that may wait to be read: instead of more, better ones are made later."""
FIRST = 1
"""The order of requested experts; guesses have higher orders, which are read later."""
LOWEST = -(1 << 62)
"""The rank of free slots and of experts that were never used."""
FINE = 1 << 32
"""Ranks are integers: the logarithm of the worth times this factor."""
GUESSED, IN_USE, GIVEN_BACK = 1, 2, 3
"""How strongly a slot is protected: a guess evicts none of these, a requested expert evicts only guesses."""


class CheckedSource(Protocol):
    """Reads bundles when the filling could not, and checks that bundles hold what was written."""

    def read(self, bundle: Bundle, into: memoryview) -> None:
        """Fill `into` with a bundle and check it. Raises EdgeInferError."""

    def check(self, bundle: Bundle, data: NDArray[np.uint8]) -> None:
        """Raise EdgeInferError unless `data` is what was written; may check each bundle only once."""


MakeFilling = Callable[[Sequence[Bundle], NDArray[np.uint8], int], Filling]
"""Makes the filling of the slots, given all bundles in order, the memory and the number of concurrent reads."""


class ExpertCache:
    """Memory slots that experts are read into. Use it from one thread; another thread may close it."""

    def __init__(
        self,
        source: CheckedSource,
        bundles: Sequence[Sequence[Bundle]],
        memory: NDArray[np.uint8],
        filling: MakeFilling,
        n_readers: int,
        *,
        guesses: bool = True,
        lru: bool = False,
    ) -> None:
        """`bundles`: those of each expert of each layer. `memory`: uint8[slots, bytes], pages; more slots than readers.

        For comparisons: with `guesses` False nothing is read ahead; with `lru` the most recently used experts stay,
        however seldom they were used.
        """
        self._source, self._memory, self.guesses, self._lru = source, memory, guesses, lru
        self._starts = [0, *accumulate(map(len, bundles))]
        self._layers = [layer for layer, its_bundles in enumerate(bundles) for _ in its_bundles]
        self._bundles = [bundle for layer in bundles for bundle in layer]
        n_keys = len(self._bundles)
        self._slots, self._keys = [-1] * n_keys, [-1] * len(memory)  # slot of a key (a layer's expert), key of a slot
        self._checked = [False] * n_keys
        self._scores = [0.0] * n_keys  # the worth of the uses at the time of the last one
        self._used_at = [0] * n_keys  # when that was, in passes of the layer
        self._ranks = [LOWEST] * n_keys  # ranks as in the slots: worth, without the aging since the last use
        self._passes = [0] * len(bundles)
        self._n_asks = 0
        self._in_use: list[int] = []
        self._asked: list[int] = []  # those in use that were not in memory
        self._guessed: list[int] = []  # guesses, some of which may have been read since
        self._unproved: set[int] = set()  # guesses for layers to come that were read but not used yet
        self._is_whole, self._closed = True, False
        self._waited_s = 0.0
        self._n_wanted = self._n_found = self._n_guessed = self._n_proved = 0
        self._n_readers, self._n_slots = n_readers, len(memory)
        self._filling = filling(self._bundles, memory, n_readers)
        self._states = self._filling.slots
        self._states.ranks[:] = LOWEST
        self._step = 0 if lru else int(LATER * FINE / HALF_LIFE / len(bundles))

    @property
    def most_at_once(self) -> int:
        """Most experts that may be requested at a time; the other slots may be in the middle of a read."""
        return self._n_slots - self._n_readers

    @property
    def nbytes(self) -> int:
        """Bytes of memory for experts, without the slots that were given back."""
        return self._n_slots * int(self._memory.strides[0])

    def resize(self, n_bytes: int, most_used: int) -> None:
        """Give back the memory of the experts worth least, or take memory again. Call it between two passes.

        At least `most_used` experts fit afterwards; the memory never exceeds what it was at first.
        """
        wanted = max(n_bytes // int(self._memory.strides[0]), most_used + self._n_readers)
        wanted = min(wanted, len(self._keys))
        self._is_whole = False
        self._mend()
        self._filling.settle(range(len(self._keys)))
        barred, states = self._states.barred, self._states
        while self._n_slots > wanted:
            slot = self._filling.least(IN_USE)
            if (key := self._keys[slot]) >= 0:
                self._slots[key] = -1
            states.held[slot] = NOBODY
            self._free(slot)
            barred[slot] = GIVEN_BACK
            self._n_slots -= 1
            give_back(self._memory[slot])
        for slot in np.flatnonzero(barred == GIVEN_BACK)[: max(0, wanted - self._n_slots)].tolist():
            barred[slot] = 0
            self._n_slots += 1
        self._is_whole = True

    def ask(self, layer: int, experts: Sequence[int]) -> None:
        """Start reading these experts of a layer, `most_at_once` at most, before all guesses: a pass needs them."""
        keys = [self._starts[layer] + number for number in experts]
        if not self._is_whole:
            self._mend()
        self._is_whole = False
        self._forget(layer, keys)
        self._filling.take_turns(layer, len(self._passes), self._step)
        self._count(layer, keys)
        self._in_use = keys
        held, orders, barred = self._states.held, self._states.orders, self._states.barred
        for key in keys:
            slot = self._slots[key]
            if slot >= 0:
                barred[slot] = IN_USE
            # a guess that was repeated while its read ended is read twice: it must not be used meanwhile
            if slot < 0 or orders[slot] or held[slot] != key:
                self._asked.append(key)
        self._n_found += len(keys) - len(self._asked)
        if self._asked:
            self._have_read(self._asked)
        self._is_whole = True

    def wait(self, layer: int, experts: Sequence[int]) -> NDArray[np.int64]:
        """Addresses of requested experts, once all have been read. Raises the error of a failed read, EngineClosed."""
        keys = [self._starts[layer] + number for number in experts]
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        slots = [self._slots[key] for key in keys]
        if self._asked:
            started = time.perf_counter()
            self._filling.settle([self._slots[key] for key in self._asked])
            self._waited_s += time.perf_counter() - started
            for key in self._asked:
                if self._states.held[self._slots[key]] != key:  # reading failed: this raises why, or succeeds
                    self._read(key, self._slots[key])
            self._asked = []
        for key in keys:
            if not self._checked[key]:
                self._check(key, self._slots[key])
        stride = self._memory.strides[0]
        return np.array(slots, np.int64) * stride + self._memory.ctypes.data

    def guess(self, likely: Sequence[tuple[int, int]]) -> None:
        """Read (layer, expert) pairs that layers to come probably need, in this order, while no pass waits for a read.

        Drops older guesses that are not repeated and whose read has not begun.
        """
        if not self.guesses or not self._is_whole:
            return
        self._is_whole = False
        keys = [self._starts[layer] + number for layer, number in likely]
        waiting = self._waiting_guesses()
        if stale := [key for key in waiting if key not in keys]:
            self._give_up(stale)
        n_more, coming = MOST_GUESSES - len(waiting) + len(stale), list[int]()
        for key in keys:
            slot = self._slots[key]
            if slot < 0 and n_more > 0:
                slot = self._place_guess(key)
                n_more -= slot >= 0
            elif slot >= 0 and key not in waiting and not self._is_missed(key):
                continue
            if slot >= 0:
                coming.append(slot)
        if coming:
            self._filling.want(coming, GUESS)
        self._guessed = [self._keys[slot] for slot in coming]
        self._is_whole = True

    @property
    def reading(self) -> WeightReads:
        """What was read so far, and how often an expert was in memory already."""
        counts, sizes, n_bytes = self._filling.counts, Counter[int](), 0
        for bundle, count in zip(self._bundles, counts.tolist(), strict=True):
            if count:
                sizes[bundle.padded_bytes] += count
                n_bytes += count * bundle.padded_bytes
        found = self._n_wanted, self._n_found, self._n_guessed, self._n_proved
        return WeightReads(n_bytes, self._waited_s, 0, dict(sizes), *found, read_s=self._filling.read_s)

    def close(self) -> None:
        """Stop reading and free the memory. Safe to call twice."""
        self._closed = True
        self._filling.close()
        self._memory = self._memory[:0].copy()

    def _forget(self, layer: int, keys: Sequence[int]) -> None:
        """Release the experts in use; cancel requests that were never awaited, and wrong guesses for this layer."""
        if self._asked:
            self._give_up(self._asked)
            self._asked = []
        barred = self._states.barred
        for key in self._in_use:
            slot = self._slots[key]
            if slot >= 0:
                barred[slot] = 0
        over = [key for key in self._unproved if self._layers[key] == layer]
        wrong = [key for key in over if key not in keys]
        self._n_proved += len(over) - len(wrong)
        if wrong:
            self._give_up(wrong)
        for key in over:
            self._unproved.discard(key)
            if (slot := self._slots[key]) >= 0:
                barred[slot] = 0

    def _count(self, layer: int, keys: Sequence[int]) -> None:
        """Count a use of these experts and update their ranks."""
        self._n_wanted += len(keys)
        self._n_asks += 1
        self._passes[layer] += 1
        now, ranks = self._passes[layer], self._states.ranks
        for key in keys:
            self._scores[key] = 1.0 + self._scores[key] * math.exp2((self._used_at[key] + 1 - now) / HALF_LIFE)
            self._used_at[key] = now
            rank = self._n_asks if self._lru else int((math.log2(self._scores[key]) + now / HALF_LIFE) * FINE)
            self._ranks[key] = rank
            if (slot := self._slots[key]) >= 0:
                ranks[slot] = rank

    def _worth(self, key: int) -> float:
        """The worth of an expert now: its uses, which count less the longer ago they were."""
        ago = self._passes[self._layers[key]] - self._used_at[key]
        return self._scores[key] * math.exp2(-ago / HALF_LIFE)

    def _have_read(self, missing: Sequence[int]) -> None:
        """Read requested experts; those without a slot get the slots of others."""
        for key in missing:
            if self._slots[key] < 0:
                slot = self._filling.least(GUESSED)
                if slot < 0:  # waiting guesses hold the other slots
                    self._give_up(self._waiting_guesses())
                    slot = self._filling.least(GUESSED)
                self._place(key, slot, IN_USE)
        self._filling.want([self._slots[key] for key in missing], FIRST)

    def _place_guess(self, key: int) -> int:
        """Give a guess a slot and return it; -1 if all slots hold experts that are worth more."""
        slot = self._filling.least(0)
        if slot < 0 or (self._keys[slot] >= 0 and self._worth(self._keys[slot]) >= self._worth(key) + GUESS_WORTH):
            return -1
        self._place(key, slot, GUESSED)
        self._unproved.add(key)
        self._n_guessed += 1
        return slot

    def _place(self, key: int, slot: int, barred: int) -> None:
        """Give a slot to a key, in an order of steps that never leaves a slot with two owners."""
        before, states = self._keys[slot], self._states
        if before >= 0:
            self._slots[before] = -1
            self._unproved.discard(before)
        states.held[slot] = NOBODY
        states.tags[slot] = self._keys[slot] = key
        states.ranks[slot], states.barred[slot], states.turns[slot] = self._ranks[key], barred, self._layers[key]
        self._slots[key] = slot

    def _waiting_guesses(self) -> list[int]:
        """Guesses whose read has not begun."""
        orders = self._states.orders
        return [key for key in self._guessed if self._slots[key] >= 0 and orders[self._slots[key]] >= GUESS]

    def _is_missed(self, key: int) -> bool:
        """Whether a key has a slot that does not hold its expert and that is not being read into."""
        slot = self._slots[key]
        return bool(self._states.orders[slot] == 0 and self._states.held[slot] != key)

    def _give_up(self, keys: Sequence[int]) -> None:
        """Cancel reads that have not begun and free their slots."""
        keys = [key for key in keys if self._slots[key] >= 0]
        self._filling.drop([self._slots[key] for key in keys])
        for key in keys:
            if self._is_missed(key):
                slot, self._slots[key] = self._slots[key], -1
                self._free(slot)
                self._n_guessed -= key in self._unproved
                self._unproved.discard(key)

    def _free(self, slot: int) -> None:
        self._keys[slot], self._states.ranks[slot], self._states.barred[slot] = -1, LOWEST, 0

    def _mend(self) -> None:
        """Repair the state after an interruption: cancel reads that have not begun, free slots without an owner."""
        self._filling.drop(range(len(self._keys)))
        owners = {slot: key for key, slot in enumerate(self._slots) if slot >= 0}
        given_back = self._states.barred == GIVEN_BACK
        self._n_slots = len(self._keys) - int(given_back.sum())
        for slot in np.flatnonzero(~given_back).tolist():
            self._free(slot)
            if (key := owners.get(slot, -1)) < 0:
                continue
            if self._is_missed(key):
                self._slots[key] = -1
            else:
                self._keys[slot], self._states.ranks[slot] = key, self._ranks[key]
        self._in_use, self._asked, self._guessed = [], [], []
        self._unproved.clear()

    def _read(self, key: int, slot: int) -> None:
        bundle = self._bundles[key]
        self._source.read(bundle, self._memory[slot].data[: bundle.padded_bytes])
        self._states.held[slot] = key

    def _check(self, key: int, slot: int) -> None:
        """Check the first read of an expert; if it is not what was written, the expert is read again next time."""
        bundle = self._bundles[key]
        try:
            self._source.check(bundle, self._memory[slot, : bundle.nbytes])
        except BaseException:
            self._states.held[slot] = NOBODY
            raise
        self._checked[key] = True
