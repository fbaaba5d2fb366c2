"""Shared prefixes: prompts that begin alike share the cached keys and values of their beginning.

In: prompts, sequences of running and finished answers. Out: sequences that start with a prefix that others have read.
Sequences of finished answers stay until their memory is needed; the least recently used goes first. Knows no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgeinfer.engine.run.cached import CachedSequence, n_common
from edgeinfer.engine.run.pool import Pool

LEAST_SHARED = 16
"""Fewest tokens that are worth sharing."""
MOST_KEPT = 32
"""Most sequences of finished answers to keep."""


class Prefixes:
    """The cached sequences of finished requests; needs the engine's lock."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._kept: list[CachedSequence] = []

    @property
    def kept(self) -> tuple[CachedSequence, ...]:
        """Sequences of finished answers, least recently used first."""
        return tuple(self._kept)

    def begin(self, cached: CachedSequence, prompt: Sequence[int]) -> None:
        """Start an empty sequence with the longest prefix of a prompt that any other sequence has cached."""
        donor, n_same = self.best(cached, prompt)
        if donor is None:
            return
        if donor in self._kept:
            self._kept.remove(donor)
            if n_same == donor.n_cached:
                cached.take_over(donor)
                return
            self._kept.append(donor)  # the most recently used
        cached.share(donor, n_same)

    def best(self, cached: CachedSequence, prompt: Sequence[int]) -> tuple[CachedSequence | None, int]:
        """The other sequence with the longest cached prefix of a prompt, and its length; None if too short to share."""
        tokens, donor, n_same = list(prompt), None, LEAST_SHARED - 1
        for other in self._pool.members:
            n_cached = 0 if other is cached else other.n_common(tokens)
            if n_cached > n_same:
                donor, n_same = other, n_cached
        return donor, n_same if donor is not None else 0

    def keep(self, cached: CachedSequence) -> None:
        """Keep what a finished request has cached, as long as nothing needs the memory."""
        tokens = list(cached.tokens)
        for other in self.kept:
            if other.n_common(tokens) == other.n_cached:  # the new one contains it
                self._close(other)
        if cached.n_cached >= LEAST_SHARED:
            self._kept.append(cached)
        else:
            cached.close()
        while len(self._kept) > MOST_KEPT:
            self._close(self._kept[0])

    def give_up(self) -> bool:
        """Close the least recently used sequence. Returns whether there was one."""
        if not self._kept:
            return False
        self._close(self._kept[0])
        return True

    def close(self) -> None:
        """Close all of them."""
        while self.give_up():
            pass

    def _close(self, cached: CachedSequence) -> None:
        self._kept.remove(cached)
        cached.close()


def is_being_read(prompt: Sequence[int], n_cached: int, others: Iterable[tuple[Sequence[int], int]]) -> bool:
    """Whether another answer is reading a long prefix of this prompt that is not cached yet.

    `others`: their prompts and how much of each is cached. `n_cached`: how much of this prompt is cached anywhere.
    """
    for other, n_read in others:
        if n_read >= len(other) - 1:
            continue
        n_same = n_common(prompt, other)
        if n_same - max(n_cached, n_read) >= LEAST_SHARED and n_same > n_read:
            return True
    return False
