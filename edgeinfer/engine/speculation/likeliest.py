"""The likeliest tokens of a row of logits, found by one compiled function.

In: logits with peaks, and what shifts them. Out: tokens and their shifted logits, as a sampler's `LikeliestFinder`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from edgeinfer.engine.requests.sampling import Biases, SamplingSettings
from edgeinfer.engine.speculation.drafters import loop
from edgeinfer.engine.speculation.records import LIKELIEST
from edgeinfer.graph.step import Floats
from edgeinfer.jit.library import KernelLibrary

LIKELIEST_LOOP = loop("likeliest", "likeliest", 1)
MOST_FOUND, MOST_SEEN = 64, 256
"""Most tokens that it finds, and most that penalties may apply to: more take longer than arrays do."""
FIELDS = struct.Struct("=8q3d")
"""All fields of a LIKELIEST but the last three, which stay as they are: one call is faster than assignments."""


class LikeliestTokens:
    """Finds them for one row at a time: calls must not overlap."""

    def __init__(self, library: KernelLibrary) -> None:
        self._find = library.function(LIKELIEST_LOOP)
        self._library = library  # owns the code
        self._window, self._tokens = np.zeros(MOST_SEEN, np.int32), np.zeros(MOST_FOUND, np.int32)
        self._values = np.zeros(MOST_FOUND, np.float32)
        self._record = np.zeros(1, LIKELIEST)
        for name in ("window", "tokens", "values"):
            self._record[name] = getattr(self, f"_{name}").ctypes.data
        self._bytes, self._address = self._record.view(np.uint8).data, int(self._record.ctypes.data)

    def find(
        self, logits: Floats, peaks: Floats, n: int, window: Sequence[int], settings: SamplingSettings, biases: Biases
    ) -> tuple[list[int], list[float]] | None:
        """As `LikeliestFinder.find`."""
        n_window, n_vocab = len(window), len(logits)
        n = min(n, n_vocab)
        if n > MOST_FOUND or n_window > MOST_SEEN:
            return None
        self._window[:n_window] = window
        row = logits.ctypes.data, peaks.ctypes.data, n_vocab, n, n_window, *biases.addresses
        penalties = settings.repeat_penalty, settings.frequency_penalty, settings.presence_penalty
        FIELDS.pack_into(self._bytes, 0, *row, *penalties)
        if self._find(self._address) != n:
            return None
        return self._tokens[:n].tolist(), self._values[:n].tolist()
