"""The probability that a drawn token is a certain candidate, given the noise that the candidate has in that draw.

Memory: an ACCEPTANCE record. A token of probability p and noise E (Gumbel noise g = -ln E) wins if E / p is below the
lowest E / p of all other tokens. These share the probability 1 - p, so the lowest is exponentially distributed with
that rate, whichever tokens they are; hence the token wins with probability exp(-E (1 - p) / p).

Candidates with the same estimate c have different p. The table holds the mean of that formula over the p that
candidates of each estimate turned out to have: by the logit of c, and by g. It learns from p, which is known after the
pass, and so do the counts. Whether a candidate won would mislead them: trees prefer candidates with lucky noise, whose
wins say more of the noise than of p. And p is the mean of that outcome over all noise, so it says more.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.acceptance import logit_of, point_of
from edgeinfer.engine.speculation.records import FIRST_NOISE, NOISE_STEP, NOISES, POINTS
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

RATE = np.float32(0.02)
ROW_BYTES = 4 * NOISES


@inline
def win_chance(acceptance, chance, gumbel):
    """The probability that a candidate with an estimate wins with its noise; linear between the table's entries."""
    place = point_of(acceptance, chance)
    low = min(np.int64(place), POINTS - 1)
    column = (gumbel - np.float32(FIRST_NOISE)) / np.float32(NOISE_STEP)
    column = min(max(column, np.float32(0.0)), np.float32(NOISES - 1))
    left = min(np.int64(column), NOISES - 2)
    at, share = acceptance.wins + ROW_BYTES * low + 4 * left, column - np.float32(left)
    above, below = _between(at, share), _between(at + ROW_BYTES, share)
    return above + (place - np.float32(low)) * (below - above)


@inline
def _between(at, share):
    """The value between an entry and the next."""
    first = simd.load_float(at)
    return first + share * (simd.load_float(at + 4) - first)


@inline
def note_probability(acceptance, chance, probability):
    """Learn what probability a candidate with an estimate had."""
    place = point_of(acceptance, chance)
    low = min(np.int64(place), POINTS - 1)
    share, logit = place - np.float32(low), simd.splat(logit_of(acceptance, probability))
    first = simd.splat(RATE * (np.float32(1.0) - share))
    second = simd.splat(RATE * share)
    zero = simd.splat(np.float32(0.0))
    for column in range(0, NOISES, 16):
        lifted = simd.add(logit, simd.load(acceptance.noises + 4 * column))
        wins = simd.exp(simd.sub(zero, simd.exp(simd.sub(zero, lifted))))
        at = acceptance.wins + ROW_BYTES * low + 4 * column
        _approach(at, wins, first)
        _approach(at + ROW_BYTES, wins, second)


@inline
def _approach(at, values, rate):
    """Move 16 entries towards values."""
    before = simd.load(at)
    simd.store(at, simd.fma(rate, simd.sub(values, before), before))
