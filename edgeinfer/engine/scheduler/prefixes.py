"""Prompts that begin alike share what is cached of their beginning.

In: prompts, sequences of answers that go on or are over. Out: sequences that begin with what others have read. Answers
that are over stay until their memory is needed, the one used longest ago goes first. Knows no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgeinfer.engine.run.cached import CachedSequence, n_common
from edgeinfer.engine.run.pool import Pool

LEAST_SHARED = 16
"""Tokens that are worth sharing."""
MOST_KEPT = 32
"""Sequences of answers that are over."""


class Prefixes:
    """The cached sequences of finished requests; under the engine's lock."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._kept: list[CachedSequence] = []

    @property
    def kept(self) -> tuple[CachedSequence, ...]:
        """Sequences of answers that are over, the one used longest ago first."""
        return tuple(self._kept)

    def begin(self, cached: CachedSequence, prompt: Sequence[int]) -> None:
        """Let an empty sequence begin with what any other has cached of a prompt."""
        donor, n_same = self.best(cached, prompt)
        if donor is None:
            return
        if donor in self._kept:
            self._kept.remove(donor)
            if n_same == donor.n_cached:
                cached.take_over(donor)
                return
            self._kept.append(donor)  # the one used last
        cached.share(donor, n_same)

    def best(self, cached: CachedSequence, prompt: Sequence[int]) -> tuple[CachedSequence | None, int]:
        """The other sequence that has most of a prompt cached, and how much; none where it is too little to share."""
        tokens, donor, n_same = list(prompt), None, LEAST_SHARED - 1
        for other in self._pool.members:
            n_cached = 0 if other is cached else other.n_common(tokens)
            if n_cached > n_same:
                donor, n_same = other, n_cached
        return donor, n_same if donor is not None else 0

    def keep(self, cached: CachedSequence) -> None:
        """A request is finished; what it has cached stays while nothing needs the memory."""
        tokens = list(cached.tokens)
        for other in self.kept:
            if other.n_common(tokens) == other.n_cached:  # the new one has all of it
                self._close(other)
        if cached.n_cached >= LEAST_SHARED:
            self._kept.append(cached)
        else:
            cached.close()
        while len(self._kept) > MOST_KEPT:
            self._close(self._kept[0])

    def give_up(self) -> bool:
        """Close the sequence used longest ago; whether there was one."""
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
    """Whether another answer is reading much that a prompt begins with too, and that is not cached yet.

    `others`: their prompts and how much of them is cached. `n_cached`: what is cached of this one anywhere.
    """
    for other, n_read in others:
        if n_read >= len(other) - 1:
            continue
        n_same = n_common(prompt, other)
        if n_same - max(n_cached, n_read) >= LEAST_SHARED and n_same > n_read:
            return True
    return False
