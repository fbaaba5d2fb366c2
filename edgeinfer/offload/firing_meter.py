"""How neurons fire: the share of a model's neurons that fires, and how many of these fired shortly before.

In: the neurons of each layer that a token needs. Out: a `Fired`. It predicts the hit rate of a window of any size,
whatever the present size: a window holds the neurons that fired for the most recent tokens. Knows nothing of reading.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.offload.weights import Fired

TOKENS_BACK = (1, 2, 4, 8, 16, 32)
"""Sizes of windows that are simulated: each holds the neurons that fired for that many recent tokens."""
EVERY = 4
"""One in this many tokens is examined, which takes some hundredths of a millisecond a layer."""
NEVER = -(1 << 40)


class FiringMeter:
    """Counts firing neurons in all layers of a model, which have `sizes` neurons."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._fired = [np.full(size, NEVER, np.int64) for size in sizes]
        self._turns = [0] * len(sizes)
        self._n_fired = self._n_asked = self._n_tokens = 0
        self._counts = np.zeros((len(TOKENS_BACK), 4), np.int64)  # held, of how many; found, of how many

    def see(self, layer: int, neurons: NDArray[np.int64], n_tokens: int, n_firing: int) -> None:
        """Count a pass: `n_tokens` tokens need neurons int64[n] of a layer, which fire `n_firing` times in all."""
        fired, turn = self._fired[layer], self._turns[layer] + n_tokens
        self._turns[layer] = turn
        self._n_fired += n_firing
        self._n_asked += n_tokens * len(fired)
        self._n_tokens += n_tokens if layer == 0 else 0
        if n_tokens == 1 and turn % EVERY == 0 and len(neurons):
            before = turn - fired
            wanted = before[neurons]
            for place, back in enumerate(TOKENS_BACK):
                if back < turn:
                    held, found = np.count_nonzero(before <= back), np.count_nonzero(wanted <= back)
                    self._counts[place] += held, len(fired), found, len(neurons)
        fired[neurons] = turn

    @property
    def fired(self) -> Fired:
        """The counts so far, as shares."""
        found = tuple((held / of, hits / n) for held, of, hits, n in self._counts.tolist() if n)
        return Fired(self._n_fired / max(1, self._n_asked), found, self._n_tokens)
