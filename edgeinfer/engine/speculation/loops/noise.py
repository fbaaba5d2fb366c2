"""The noise of draws as `requests.noise` defines it, for tokens that may be drafted.

Memory: an ACCEPTANCE record with the table of Gumbel noise by share. Only the upper bits of the hash are used: drafters
need not know noise exactly.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.requests.noise import STEP, STIR_FIRST, STIR_SECOND
from edgeinfer.engine.speculation.records import SHARE_BITS
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline


@inline
def stirred(number):
    """SplitMix64's output function: uint64."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(STIR_FIRST)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(STIR_SECOND)
    return number ^ (number >> np.uint64(31))


@inline
def draw_key(noise_key, n):
    """Where the stream of draw `n` begins: uint64."""
    return stirred(np.uint64(noise_key) + np.uint64(STEP) * np.uint64(n + 1))


@inline
def gumbel_of(acceptance, key, token):
    """The Gumbel noise of a token in the draw with this key."""
    share = stirred(key + np.uint64(STEP) * np.uint64(token)) >> np.uint64(64 - SHARE_BITS)
    return simd.load_float(acceptance.gumbel_of + 4 * np.int64(share))
