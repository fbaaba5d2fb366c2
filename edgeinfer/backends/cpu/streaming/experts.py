"""The experts of a mixture that are in memory: a cache by recency and frequency, read ahead on a guess.

In: the bundles of experts by layer and number, what fills slots of memory, a source. Out: addresses of the experts that
a pass has chosen. What is used again and again stays; guesses are read when nothing else is waited for, and never push
out what is used more. Knows nothing of routers, or of how slots are filled.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.contents import Bundle
from edgeinfer.backends.cpu.slot_records import GUESS, NOBODY
from edgeinfer.backends.cpu.streaming.slots import Filling, Numbers
from edgeinfer.backends.stored import Reading
from edgeinfer.errors import EngineClosed

HALF_LIFE = 4
"""Passes of a layer after which a use counts half (least frequently used, with aging)."""
GUESS_WORTH = 1.0
"""A guess counts as so many uses."""
MOST_GUESSES = 8
"""Guesses that wait to be read: the later ones are better made anew."""
FIRST = 1
"""The order of what is asked for; guesses have later ones."""


class CheckedSource(Protocol):
    """Where bundles come from if need be, and what knows whether they are what was written."""

    def read(self, bundle: Bundle, into: memoryview) -> None:
        """Fill `into` with a bundle, checked. Raises EdgeInferError."""

    def check(self, bundle: Bundle, data: NDArray[np.uint8]) -> None:
        """Raise EdgeInferError unless `data` is what was written; may look only once."""


class ExpertCache:
    """Slots of memory that experts are read into. Use it from one thread; another one may close it."""

    def __init__(
        self,
        source: CheckedSource,
        bundles: Sequence[Sequence[Bundle]],
        memory: NDArray[np.uint8],
        filling: Callable[[Sequence[Bundle], NDArray[np.uint8], int], Filling],
        n_readers: int,
        *,
        guesses: bool = True,
        lru: bool = False,
    ) -> None:
        """`bundles`: of each expert of each layer. `memory`: uint8[slots, bytes], pages; more slots than readers.

        `filling` is given all bundles in order, the memory and `n_readers`. For comparisons: `guesses` False reads
        nothing ahead, `lru` keeps what was used last, however seldom that was.
        """
        self._source, self._memory, self.guesses, self._lru = source, memory, guesses, lru
        self._starts = [0, *accumulate(map(len, bundles))]
        self._bundles = [bundle for layer in bundles for bundle in layer]
        n_keys = len(self._bundles)
        self._slots = np.full(n_keys, -1, np.int64)  # of each key: a layer's expert
        self._keys = np.full(len(memory), -1, np.int64)  # of each slot
        self._unproved = np.zeros(n_keys, bool)  # guesses that nobody has used yet
        self._checked = np.zeros(n_keys, bool)
        self._scores = np.zeros(n_keys)  # uses, as they counted when the last one was,
        self._used_at = np.zeros(n_keys)  # in passes of the layer
        self._passes = np.zeros(n_keys)
        self._free = list(range(len(memory)))[::-1]
        self._in_use: Numbers = np.zeros(0, np.int64)
        self._asked = self._in_use  # of them, those that were not there
        self._guessed: list[int] = []  # keys, perhaps read by now
        self._is_whole = True
        self._closed = False
        self._waited_s = 0.0
        self._n_wanted = self._n_found = self._n_guessed = self._n_proved = 0
        self.most_at_once = len(memory) - n_readers
        """Experts that may be asked for at a time: others are on their way."""
        self._filling = filling(self._bundles, memory, n_readers)

    def ask(self, layer: int, experts: Sequence[int]) -> None:
        """A pass needs these experts of a layer, `most_at_once` at most: have them read, before all guesses."""
        keys = self._starts[layer] + np.array(experts, np.int64)
        if not self._is_whole:
            self._mend()
        self._is_whole = False
        self._in_use = keys
        self._forget(layer, keys)
        there = self._are_there(keys)
        self._count(layer, keys, there)
        self._asked = keys[~there]
        if len(self._asked):
            self._have_read(self._asked)
        self._is_whole = True

    def wait(self, layer: int, experts: Sequence[int]) -> Numbers:
        """Addresses of experts that were asked for, once all are there. Raises what reading raised, EngineClosed."""
        keys = self._starts[layer] + np.array(experts, np.int64)
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        slots = self._slots[keys]
        if len(self._asked):
            started = time.perf_counter()
            self._filling.settle(slots)
            self._waited_s += time.perf_counter() - started
            for key, slot in zip(keys.tolist(), slots.tolist(), strict=True):
                if self._filling.held[slot] != key:  # it could not be read: this says why, or can
                    self._read(key, slot)
            self._asked = self._asked[:0]
        for place in np.flatnonzero(~self._checked[keys]).tolist():
            self._check(int(keys[place]), int(slots[place]))
        found: Numbers = self._memory.ctypes.data + slots * self._memory.strides[0]
        return found

    def guess(self, likely: Sequence[tuple[int, int]]) -> None:
        """Layers to come will probably need these (layer, expert), in this order: read them when nothing is waited for.

        Older guesses that are not being read yet are forgotten.
        """
        if not self.guesses or not self._is_whole:
            return
        self._is_whole = False
        filling, keys = self._filling, [self._starts[layer] + number for layer, number in likely]
        waiting = self._guessed = self._waiting_guesses()
        stale = set(waiting).difference(keys)
        if stale:
            self._give_up(np.array(list(stale), np.int64))
        n_more = max(0, MOST_GUESSES - len(waiting) + len(stale))
        new = [key for key in keys if self._slots[key] < 0][:n_more]
        if new:
            self._guessed = waiting + new
            self._take_for_guesses(np.array(new, np.int64))
        coming = [key for key in keys if self._slots[key] >= 0 and (key in waiting or self._is_missed(key))]
        if coming:
            filling.want(self._slots[coming], GUESS)
        self._guessed = coming
        self._is_whole = True

    @property
    def reading(self) -> Reading:
        """What was read so far, and how often it was there already."""
        counts, sizes, n_bytes = self._filling.counts, Counter[int](), 0
        for bundle, count in zip(self._bundles, counts.tolist(), strict=True):
            if count:
                sizes[bundle.padded_bytes] += count
                n_bytes += count * bundle.padded_bytes
        found = self._n_wanted, self._n_found, self._n_guessed, self._n_proved
        return Reading(n_bytes, self._waited_s, 0, dict(sizes), *found, read_s=self._filling.read_s)

    def close(self) -> None:
        """Stop reading and let the memory go. Safe to call twice."""
        self._closed = True
        self._filling.close()
        self._memory = self._memory[:0].copy()

    def _are_there(self, keys: Numbers) -> NDArray[np.bool_]:
        """Which of some keys are in memory."""
        slots = self._slots[keys]
        found: NDArray[np.bool_] = (slots >= 0) & (self._filling.held[slots] == keys)
        return found

    def _is_missed(self, key: int) -> bool:
        """Whether a key has a slot that holds something else, though nothing is being read."""
        slot = self._slots[key]
        return bool(self._filling.orders[slot] == 0 and self._filling.held[slot] != key)

    def _count(self, layer: int, keys: Numbers, there: NDArray[np.bool_]) -> None:
        """Experts are used: how many were there, and what uses are worth."""
        self._n_wanted += len(keys)
        self._n_found += int(there.sum())
        self._n_proved += int(self._unproved[keys].sum())
        first, stop = self._starts[layer], self._starts[layer + 1]
        self._unproved[first:stop] = False  # those that were wrong prove nothing any more
        worth = self._worth(keys)
        self._passes[first:stop] += 1
        self._scores[keys] = 1.0 + worth
        self._used_at[keys] = self._passes[keys]

    def _worth(self, keys: Numbers) -> NDArray[np.float64]:
        """What experts are worth now: uses that count less the longer ago they were, or (lru) how long that is."""
        ago = self._passes[keys] - self._used_at[keys]
        return -ago if self._lru else self._scores[keys] * np.exp2(ago / -HALF_LIFE)

    def _have_read(self, missing: Numbers) -> None:
        """Read what is asked for, into slots of others where it has none."""
        new = missing[self._slots[missing] < 0]
        if len(new):
            victims = self._victims(len(new), guesses_too=True)
            if len(victims) < len(new):  # guesses that wait have the others
                self._give_up(np.array(self._guessed, np.int64))
                victims = self._victims(len(new), guesses_too=True)
            self._take(new, victims)
        self._filling.want(self._slots[missing], FIRST)

    def _forget(self, layer: int, keys: Numbers) -> None:
        """Give up what an earlier pass asked for and nobody waited for, and guesses at this layer that were wrong."""
        if len(self._asked):
            self._give_up(self._asked)
        first, stop = self._starts[layer], self._starts[layer + 1]
        needed = set(keys.tolist())
        wrong = [key for key in self._waiting_guesses() if first <= key < stop and key not in needed]
        if wrong:
            self._give_up(np.array(wrong, np.int64))

    def _waiting_guesses(self) -> list[int]:
        """Guesses that are not being read yet."""
        orders = self._filling.orders
        return [key for key in self._guessed if self._slots[key] >= 0 and orders[self._slots[key]] >= GUESS]

    def _take_for_guesses(self, new: Numbers) -> None:
        """Give guesses slots, the likeliest first, as long as those hold what is worth less."""
        victims = self._victims(len(new), guesses_too=False)
        n_taken = len(victims)
        held = self._keys[victims]
        taken = held >= 0
        if taken.any():
            cheaper = np.ones(n_taken, bool)
            cheaper[taken] = self._worth(held[taken]) < self._worth(new[:n_taken][taken]) + GUESS_WORTH
            n_taken = n_taken if cheaper.all() else int(cheaper.argmin())
        self._take(new[:n_taken], victims[:n_taken])
        self._unproved[new[:n_taken]] = True
        self._n_guessed += n_taken

    def _victims(self, count: int, *, guesses_too: bool) -> Numbers:
        """Slots to be filled anew: free ones, then those worth least; fewer where there are none."""
        free = self._free[-count:][::-1]
        if len(free) == count:
            return np.array(free, np.int64)
        may_go = (self._keys >= 0) & (self._filling.orders == 0)
        used = self._slots[self._in_use]
        may_go[used[used >= 0]] = False
        if not guesses_too:
            may_go &= ~self._unproved[self._keys]
        slots = np.flatnonzero(may_go)
        worth, n_more = self._worth(self._keys[slots]), min(count - len(free), len(slots))
        lowest = np.argsort(worth, kind="stable")[:n_more]
        return np.concatenate([np.array(free, np.int64), slots[lowest]])

    def _take(self, keys: Numbers, slots: Numbers) -> None:
        """Let keys have slots, in an order that leaves no slot with two owners."""
        for key, slot in zip(keys.tolist(), slots.tolist(), strict=True):
            before = int(self._keys[slot])
            if before >= 0:
                self._slots[before], self._unproved[before] = -1, False
            else:
                self._free.pop()
            self._filling.held[slot] = NOBODY
            self._filling.tags[slot] = self._keys[slot] = key
            self._slots[key] = slot

    def _give_up(self, keys: Numbers) -> None:
        """What waits to be read is not needed any more: its slots are free."""
        keys = keys[self._slots[keys] >= 0]
        slots = self._slots[keys]
        self._filling.drop(slots)
        for key, slot in zip(keys.tolist(), slots.tolist(), strict=True):
            if self._filling.orders[slot] == 0 and self._filling.held[slot] != key:
                self._n_guessed -= int(self._unproved[key])
                self._slots[key], self._unproved[key] = -1, False
                self._keys[slot] = -1
                self._free.append(slot)

    def _mend(self) -> None:
        """After an interruption: what waits to be read is given up, and slots are free that nobody has."""
        owned = np.flatnonzero(self._slots >= 0)
        self._filling.drop(self._slots[owned])
        self._keys[:] = -1
        for key in owned.tolist():
            slot = int(self._slots[key])
            if self._filling.orders[slot] == 0 and self._filling.held[slot] != key:
                self._slots[key], self._unproved[key] = -1, False
            else:
                self._keys[slot] = key
        self._free = [slot for slot in range(len(self._keys))[::-1] if self._keys[slot] < 0]
        self._asked, self._guessed = self._asked[:0], []

    def _read(self, key: int, slot: int) -> None:
        bundle = self._bundles[key]
        self._source.read(bundle, self._memory[slot].data[: bundle.padded_bytes])
        self._filling.held[slot] = key

    def _check(self, key: int, slot: int) -> None:
        """See whether what was read first of an expert is what was written; if not, it is read again next time."""
        bundle = self._bundles[key]
        try:
            self._source.check(bundle, self._memory[slot, : bundle.nbytes])
        except BaseException:
            self._filling.held[slot] = NOBODY
            raise
        self._checked[key] = True
