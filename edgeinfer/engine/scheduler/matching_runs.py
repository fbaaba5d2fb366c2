"""Runs of tokens of a prompt that also stand in other texts, at any position.

In: a prompt, and texts as token lists. Out: runs in order, none overlapping. Windows of the texts, side by side, are
found by their hashes at any place of the prompt, and grown to both sides. Knows nothing of caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.requests.prompt_rows import n_common

LEAST_RUN = 128
"""Fewest tokens of a run: shorter ones save little and are worth less."""
WINDOW = 64
"""Tokens of a window: a run of LEAST_RUN has at least one of those that lie side by side."""
MOST_PLACES = 8
"""Most places that are tried of a window that texts repeat, the last ones found."""
FACTOR = 0x9E3779B97F4A7C15
"""Base of the hashes: an odd number, so that it has an inverse modulo 2^64."""

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MatchingRun:
    """Tokens `start` up to `stop` of a prompt, which stand in the text with this number from `source` on."""

    start: int
    stop: int
    text: int
    source: int

    @property
    def n_tokens(self) -> int:
        return self.stop - self.start

    def without(self, n_tokens: int) -> MatchingRun:
        """The run without its first tokens."""
        return MatchingRun(self.start + n_tokens, self.stop, self.text, self.source + n_tokens)


def matching_runs(prompt: Sequence[int], first: int, stop: int, texts: Sequence[Sequence[int]]) -> list[MatchingRun]:
    """Runs of the prompt's tokens from `first` up to `stop`, each as long as possible; later texts come first."""
    places: dict[int, list[tuple[int, int]]] = {}
    for number, text in enumerate(texts):
        for count, found in enumerate(_hashes(text)[::WINDOW].tolist()):
            places.setdefault(found, []).append((number, count * WINDOW))
    part, runs, position = list(prompt[first:stop]), list[MatchingRun](), 0
    hashes = _hashes(part)
    known = np.fromiter(places, np.uint64, len(places))
    for at in np.flatnonzero(np.isin(hashes, known)).tolist():
        if at < position:
            continue
        tried = places[int(hashes[at])][-MOST_PLACES:]
        run = max(_grown(part, position, at, texts, tried), key=lambda each: (each.n_tokens, each.text))
        if run.n_tokens >= LEAST_RUN:
            runs.append(MatchingRun(first + run.start, first + run.stop, run.text, run.source))
        position = max(position, run.stop if run.n_tokens >= LEAST_RUN else run.stop - WINDOW + 1)
    return runs


def _grown(
    part: list[int], position: int, at: int, texts: Sequence[Sequence[int]], places: Sequence[tuple[int, int]]
) -> Iterator[MatchingRun]:
    """The runs around a place of the part, not before `position`; empty where only the hash is the same."""
    for number, place in places:
        text, n_before = texts[number], 0
        n_after = _n_same(part, at, text, place)
        while at - n_before > position and place > n_before and part[at - n_before - 1] == text[place - n_before - 1]:
            n_before += 1
        n_before = n_before if n_after else 0
        yield MatchingRun(at - n_before, at + n_after, number, place - n_before)


def _n_same(part: list[int], at: int, text: Sequence[int], place: int) -> int:
    """How many tokens are the same from two places on; takes time for those alone, whatever follows."""
    n_same, size = 0, WINDOW
    while True:
        one, other = part[at + n_same : at + n_same + size], text[place + n_same : place + n_same + size]
        n_more = n_common(one, list(other))
        n_same += n_more
        if n_more < size:
            return n_same
        size *= 2


def _hashes(tokens: Sequence[int]) -> Hashes:
    """The hash of each window of tokens, by its first one: a polynomial of them modulo 2^64.

    Sums over all tokens before a place, of each times a power of the factor, differ by the window's sum.
    """
    n_windows = len(tokens) - WINDOW + 1
    if n_windows < 1:
        return np.zeros(0, np.uint64)
    powers = np.full(len(tokens), pow(FACTOR, -1, 1 << 64), np.uint64)
    powers[0] = 1
    np.multiply.accumulate(powers, out=powers)
    mixed = _words(tokens).astype(np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed * powers, dtype=np.uint64)])
    raised = np.full(n_windows, FACTOR, np.uint64)
    raised[0] = 1
    found: Hashes = (sums[WINDOW:] - sums[:n_windows]) * np.multiply.accumulate(raised)
    return found


def _words(tokens: Sequence[int]) -> NDArray[np.int64]:
    """Tokens as words of 64 bits; names of rows and of modules have more, of which a hash stands for all."""
    try:
        return np.array(tokens, np.int64)
    except OverflowError:
        return np.array([hash(token) for token in tokens], np.int64)
