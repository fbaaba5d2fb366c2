"""Continuing a sequence with tokens that another one has cached at other positions: keys turn, values stay.

In: a cache's bookkeeping and a lane. Out: a sequence with more cached tokens. Reading them there would give others,
because values, and the keys of later layers, depend on the text before them. Knows no text; who may use such tokens is
decided elsewhere.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.base import Lane
from edgeinfer.backends.memories import KeyTurner
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.pages import table_slots
from edgeinfer.graph.step import PAGE


class ShiftedTokens:
    """Moves cached tokens between the sequences of one cache."""

    def __init__(self, cache: KVCache, lane: Lane, turner: KeyTurner) -> None:
        self._cache, self._lane, self._turner = cache, lane, turner

    def append(self, sequence: int, donor: int, first: int, n_tokens: int, *, temperature: float = 1.0) -> bool:
        """Continue a sequence with `n_tokens` tokens that a donor, another sequence, has cached from `first` on.

        Returns whether it could: layers with a window may no longer have what they would need of these tokens.
        `temperature` divides the scores that later tokens give to them, where all columns of keys are rotated. Raises
        ContextOverflow and DoesNotFit. Unless it could, the sequence has no more tokens than before.
        """
        cache, n_before = self._cache, self._cache.n_cached(sequence)
        if sequence == donor or not 0 <= first <= first + n_tokens <= cache.n_cached(donor):
            raise ValueError(f"sequence {donor} has no {n_tokens} tokens from {first} on for sequence {sequence}")
        copies = cache.extend(sequence, n_before + n_tokens)
        try:
            copies.apply(self._lane)
            n_unseen = self._n_unseen(sequence, donor, first, n_before)
            if n_unseen is None:
                cache.truncate(sequence, n_before)
                return False
            order = np.arange(n_tokens, dtype=np.int32)
            sources = table_slots(cache.pages(donor).tolist(), order + np.int32(first))
            targets = table_slots(cache.pages(sequence).tolist(), order + np.int32(n_before))
            self._turner.turn_slots(sources, targets, n_before - first, n_unseen, 1 / temperature)
        except BaseException:  # or a signal handler raised
            cache.truncate(sequence, n_before)
            raise
        return True

    def _n_unseen(self, sequence: int, donor: int, first: int, n_before: int) -> int | None:
        """How many of the new tokens lie in pages that no later token sees in layers with a window.

        None if such layers lack some of the others in the donor. Tells the lane where they are.
        """
        cache, windows, memory = self._cache, self._cache.windows, self._lane.capabilities.windows
        if windows is None or memory is None:
            return 0
        n_tokens = cache.n_cached(sequence) - n_before
        n_unseen = min(n_tokens, max(0, windows.first_page(n_before + n_tokens) * PAGE - n_before))
        seen = cache.pages(donor)[(first + n_unseen) // PAGE : -(-(first + n_tokens) // PAGE)]
        if not windows.have_places(seen.tolist()):
            return None
        if n_unseen and n_before % PAGE:  # a page of which such layers would have the beginning alone
            windows.drop(int(cache.pages(sequence)[n_before // PAGE]))
        windows.tell(memory)
        return n_unseen
