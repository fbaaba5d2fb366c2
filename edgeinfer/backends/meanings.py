"""How devices round, in plain NumPy: activations before integer products, keys and values of an int8 cache.

In: float32 rows. Out: float32 rows. Independent of buffers, weights and caches.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.graph.step import Floats

ACTIVATION_BLOCK = 32
SMALLEST = 1e-30
"""Activation blocks with no value above this become zeros, because 127 / largest must stay finite."""

LARGEST_HALF = np.float32(65504.0)


def round_activations(source: Floats) -> Floats:
    """Values after rounding to int8 per block of 32 with scale max / 127 (zero-padded to whole blocks)."""
    n_rows, width = source.shape
    padded = np.pad(source, ((0, 0), (0, -width % ACTIVATION_BLOCK))).reshape(n_rows, -1, ACTIVATION_BLOCK)
    largest = np.abs(padded).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127.0), largest, out=np.zeros_like(largest), where=largest >= SMALLEST)
    rounded: Floats = np.rint(padded * inverse) * (largest / np.float32(127.0))
    return rounded.reshape(n_rows, -1)[:, :width]


def round_cached(source: Floats) -> Floats:
    """Values [..., K] after rounding to int8 per block of 32 with scale max / 127 as float16 (65504 at most)."""
    width = source.shape[-1]
    padded = np.pad(source.reshape(-1, width), ((0, 0), (0, -width % ACTIVATION_BLOCK)))
    padded = padded.reshape(len(padded), -1, ACTIVATION_BLOCK)
    largest = np.abs(padded).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127.0), largest, out=np.zeros_like(largest), where=largest >= SMALLEST)
    scales = np.minimum(largest / np.float32(127.0), LARGEST_HALF).astype(np.float16).astype(np.float32)
    rounded: Floats = np.rint(padded * inverse) * scales
    return rounded.reshape(len(rounded), -1)[:, :width].reshape(source.shape)
