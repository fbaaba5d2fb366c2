"""The noise of draws: one number for every token of every draw, known from the seed before the model has run.

In: a seed, the number of a draw, tokens. Out: numbers E, exponentially distributed with mean 1. The token of a draw is
the one with the lowest E / p. With g = -ln E, which is Gumbel distributed, it is the one with the highest ln p + g, and
each token wins with exactly its probability p, whatever the other tokens are (Gumbel, 1954; A* sampling, arXiv
1411.0030). The numbers are a hash: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014), of which each draw has a stream of its own and each token a place in it. `speculation.loops.noise`
computes the same hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Int64s = NDArray[np.int64]
STEP, STIR_FIRST, STIR_SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64's constants."""
MASK = (1 << 64) - 1
FACTORS = tuple(map(np.uint64, (STEP, STIR_FIRST, STIR_SECOND)))
SHIFTS = tuple(map(np.uint64, (30, 27, 31, 12)))
AT_ONCE = 1 << 14
"""Tokens whose noise is computed together: their numbers stay in a core's own cache."""


def stirred(number: int) -> int:
    """SplitMix64's output function of a 64-bit number."""
    number = ((number ^ number >> 30) * STIR_FIRST) & MASK
    number = ((number ^ number >> 27) * STIR_SECOND) & MASK
    return number ^ number >> 31


def exponential(key: int, token: int) -> float:
    """E of a token in the draw whose stream begins at `key`."""
    return -log(((stirred(key + STEP * token & MASK) >> 12) + 0.5) * 2.0**-52)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of all draws of one seed. `key`: the seed as 64 bits."""

    key: int

    @classmethod
    def of(cls, seed: int) -> Noise:
        """The noise of a seed: any whole number from 0 on."""
        key, rest = 0, int(seed)
        while rest or not key:
            key, rest = stirred((key ^ rest & MASK) + STEP & MASK), rest >> 64
        return cls(key)

    def draw_key(self, n: int) -> int:
        """Where the stream of draw `n` begins."""
        return stirred(self.key + STEP * (n + 1) & MASK)

    def exponentials(self, n: int, tokens: Int64s) -> Doubles:
        """E of tokens in draw `n`: float64[len(tokens)], each between 2^-53 and 37."""
        key, found = np.uint64(self.draw_key(n)), np.empty(len(tokens))
        for start in range(0, len(tokens), AT_ONCE):
            part = found[start : start + AT_ONCE]
            hashed = tokens[start : start + AT_ONCE].view(np.uint64) * FACTORS[0]
            hashed += key
            hashed ^= hashed >> SHIFTS[0]
            hashed *= FACTORS[1]
            hashed ^= hashed >> SHIFTS[1]
            hashed *= FACTORS[2]
            hashed ^= hashed >> SHIFTS[2]
            hashed >>= SHIFTS[3]  # with 52 bits and a half, no share is 0 or rounded to 1
            np.add(hashed, 0.5, out=part)
            part *= 2.0**-52
            np.log(part, out=part)
            np.negative(part, out=part)
        return found
