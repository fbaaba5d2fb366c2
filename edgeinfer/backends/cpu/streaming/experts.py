"""The experts of a mixture that are in memory: a cache by recency and frequency, read ahead on a guess.

In: the bundles of experts by layer and number, a source, memory in slots. Out: addresses of the experts that a pass has
chosen. What is used again and again stays; guesses are read when nothing else is waited for, and never push out what
is used more. Threads sleep while nothing is to be read. Knows nothing of routers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.contents import Bundle
from edgeinfer.backends.cpu.streaming.bell import Bell
from edgeinfer.backends.cpu.streaming.busy import BusyClock
from edgeinfer.backends.cpu.streaming.window import Source
from edgeinfer.backends.stored import Reading
from edgeinfer.errors import EngineClosed

HALF_LIFE = 4
"""Passes of a layer after which a use counts half (least frequently used, with aging)."""
GUESS_WORTH = 1.0
"""A guess counts as so many uses."""
ABSENT, COMING, READY = range(3)


class ExpertCache:
    """Slots of memory that experts are read into. Use it from one thread; close it to stop the others."""

    def __init__(
        self,
        source: Source,
        bundles: Sequence[Sequence[Bundle]],
        memory: NDArray[np.uint8],
        n_readers: int,
        *,
        guesses: bool = True,
        lru: bool = False,
    ) -> None:
        """`bundles`: of each expert of each layer. `memory`: uint8[slots, bytes], pages; more slots than readers.

        For comparisons: `guesses` False reads nothing ahead, `lru` keeps what was used last, however seldom that was.
        """
        self._source, self._memory, self._guesses, self._lru = source, memory, guesses, lru
        self._n_experts = max(map(len, bundles))
        self._bundles = {
            layer * self._n_experts + number: bundle
            for layer, its_bundles in enumerate(bundles)
            for number, bundle in enumerate(its_bundles)
        }
        n_keys = len(bundles) * self._n_experts
        self._slots = np.full(n_keys, -1)
        self._states = np.zeros(n_keys, np.uint8)
        self._in_use = np.zeros(n_keys, bool)
        self._unproved = np.zeros(n_keys, bool)  # guesses that nobody has used yet
        self._scores = np.zeros(n_keys)  # uses, as they counted when the last one was,
        self._used_at = np.zeros(n_keys)  # in passes of the layer
        self._passes = np.zeros(n_keys)
        self._free = list(range(len(memory)))[::-1]
        self._asked: deque[int] = deque()
        self._guessed: deque[int] = deque()
        self._lock = threading.Lock()
        self._arrived, self._work = Bell(), threading.Condition(self._lock)
        self._flying: set[int] = set()
        self._is_whole = True
        self._failure: BaseException | None = None
        self._stopping = False
        self._sizes: Counter[int] = Counter()
        self._n_bytes, self._waited_s = 0, 0.0
        self._busy = BusyClock()
        self._n_wanted = self._n_found = self._n_guessed = self._n_proved = 0
        self.most_at_once = len(memory) - n_readers
        """Experts that may be asked for at a time: others are on their way."""
        self._threads = [
            threading.Thread(target=self._read_on, name=f"edgeinfer-experts-{number}", daemon=True)
            for number in range(n_readers)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, layer: int, experts: Sequence[int]) -> None:
        """A pass needs these experts of a layer, `most_at_once` at most: have them read, before all guesses."""
        keys = [layer * self._n_experts + number for number in experts]
        with self._lock:
            self._failure = None
            if self._asked or not self._is_whole:
                self._forget_asked()
            self._is_whole = False
            self._in_use[:] = False
            self._in_use[keys] = True
            self._count(layer, keys)
            for key in keys:
                if self._states[key] == ABSENT:
                    self._begin(key)
                    self._asked.append(key)
            self._is_whole = True
            if self._asked:
                self._work.notify_all()

    def wait(self, layer: int, experts: Sequence[int]) -> list[int]:
        """Addresses of experts that were asked for, once all are there. Raises what reading raised, EngineClosed."""
        keys = [layer * self._n_experts + number for number in experts]
        started = time.perf_counter()
        while not (self._states[keys] == READY).all():
            if self._failure is not None:
                raise self._failure
            if self._stopping:
                raise EngineClosed("the model is closed; load it again")
            self._arrived.wait()
        with self._lock:
            self._waited_s += time.perf_counter() - started
            start, stride = self._memory.ctypes.data, self._memory.strides[0]
            return [start + int(self._slots[key]) * stride for key in keys]

    def guess(self, likely: Sequence[tuple[int, int]]) -> None:
        """Layers to come will probably need these (layer, expert), in this order: read them when nothing is waited for.

        Older guesses that are not being read yet are forgotten.
        """
        if not self._guesses:
            return
        with self._lock:
            self._guessed.clear()
            keys = (layer * self._n_experts + number for layer, number in likely)
            self._guessed.extend(key for key in keys if self._states[key] == ABSENT)
            if self._guessed:
                self._work.notify_all()

    @property
    def reading(self) -> Reading:
        """What was read so far, and how often it was there already."""
        with self._lock:
            counts = self._n_wanted, self._n_found, self._n_guessed, self._n_proved
            read_s = self._busy.seconds
            return Reading(self._n_bytes, self._waited_s, 0, dict(self._sizes), *counts, read_s=read_s)

    def close(self) -> None:
        """Stop reading and let the memory go. Safe to call twice."""
        with self._lock:
            self._stopping = True
            self._work.notify_all()
            self._arrived.ring()
        for thread in self._threads:
            thread.join()
        self._memory = self._memory[:0].copy()

    def _count(self, layer: int, keys: Sequence[int]) -> None:
        """Experts are used: how many were there, and what uses are worth."""
        self._n_wanted += len(keys)
        self._n_found += int((self._states[keys] == READY).sum())
        self._n_proved += int(self._unproved[keys].sum())
        self._unproved[keys] = False
        worth = self._worth()[keys]
        self._passes[layer * self._n_experts : (layer + 1) * self._n_experts] += 1
        self._scores[keys] = 1.0 + worth
        self._used_at[keys] = self._passes[keys]

    def _forget_asked(self) -> None:
        """What a pass asked for that was broken off, wherever that was, is not there and takes no slot."""
        self._asked.clear()
        for key in np.flatnonzero(self._states == COMING).tolist():
            if key not in self._flying:
                self._states[key] = ABSENT
        taken = set(self._slots[self._states != ABSENT].tolist())
        self._free = [slot for slot in range(len(self._memory))[::-1] if slot not in taken]

    def _worth(self) -> NDArray[np.float64]:
        """What each expert is worth now: uses that count less the longer ago they were, or (lru) how long that is."""
        ago = self._passes - self._used_at
        return -ago if self._lru else self._scores * np.exp2(ago / -HALF_LIFE)

    def _begin(self, key: int) -> bool:
        """Give an expert a slot, that of the one worth least; False where that is worth more than a guess."""
        if self._free:
            slot = self._free.pop()
        else:
            worth = self._worth()
            may_go = (self._states == READY) & ~self._in_use
            if not self._in_use[key]:
                may_go &= ~self._unproved & (worth < worth[key] + GUESS_WORTH)
                if not may_go.any():
                    return False
            victim = int(np.where(may_go, worth, np.inf).argmin())
            slot = int(self._slots[victim])
            self._states[victim], self._unproved[victim] = ABSENT, False
        self._slots[key], self._states[key] = slot, COMING
        return True

    def _next(self) -> int | None:
        """What to read next: what is waited for, else a guess."""
        if self._asked:
            return self._asked.popleft()
        while self._guessed:
            key = self._guessed.popleft()
            if self._states[key] == ABSENT and self._begin(key):
                self._unproved[key] = True
                self._n_guessed += 1
                return key
        return None

    def _read_on(self) -> None:
        while True:
            with self._lock:
                while not self._stopping and (key := self._next()) is None:
                    self._work.wait()
                if self._stopping:
                    return
                assert key is not None
                bundle, slot = self._bundles[key], int(self._slots[key])
                self._flying.add(key)
                self._busy.begin()
            failure: BaseException | None = None
            try:
                self._source.read(bundle, self._memory[slot].data[: bundle.padded_bytes])
            except BaseException as reason:  # it is raised where the expert is waited for
                failure = reason
            with self._lock:
                self._busy.end()
                self._flying.discard(key)
                if failure is None:
                    self._states[key] = READY
                    self._n_bytes += bundle.padded_bytes
                    self._sizes[bundle.padded_bytes] += 1
                else:
                    self._states[key] = ABSENT
                    self._free.append(slot)
                    if self._in_use[key]:  # a guess that cannot be read may never be needed
                        self._failure = failure
                self._arrived.ring()
