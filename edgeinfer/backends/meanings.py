"""How devices round, in plain NumPy: activations before integer products, keys, values and queries of a rounded cache.

A cache of the kinds `q8`, `q8q4` and `q4` stores keys and values rotated: each head is multiplied by an orthonormal
Hadamard matrix, which spreads a few large numbers over many, and then rounded. Queries are rotated likewise, which
leaves scores as they are. In: float32 rows. Out: float32 rows. Independent of buffers, weights and caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np

from edgeinfer.graph.step import Floats
from edgeinfer.settings import KVKind

ACTIVATION_BLOCK = 32
SMALLEST = 1e-30
"""Blocks with no value above this have an inverse scale of zero, because 127 / largest must stay finite."""
NIBBLE_BLOCK = 16
"""Numbers of 4 bits that share a scale."""
MIDDLE = 7.5
"""A code of 4 bits stands for code - MIDDLE scales: 16 levels, as many below zero as above, none of them zero."""
LARGEST_HALF = np.float32(65504.0)
MOST_ROTATED = 256
"""Most columns of a head that are rotated together."""

RoundedForm: TypeAlias = Literal["q8", "q4"]
"""How rounded keys, or values, are stored: blocks of 32 numbers of 8 bits with a scale, or of 16 with 4 bits."""

FORMS: Mapping[KVKind, tuple[RoundedForm, RoundedForm] | None] = MappingProxyType(
    {"f16": None, "q8": ("q8", "q8"), "q8q4": ("q8", "q4"), "q4": ("q4", "q4")}
)
"""The forms of keys and of values in a cache of each kind; None if both are float16."""


def round_activations(source: Floats) -> Floats:
    """Values after rounding to int8 per block of 32 with scale max / 127 (zero-padded to whole blocks)."""
    n_rows, width = source.shape
    padded = np.pad(source, ((0, 0), (0, -width % ACTIVATION_BLOCK))).reshape(n_rows, -1, ACTIVATION_BLOCK)
    largest = np.abs(padded).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127.0), largest, out=np.zeros_like(largest), where=largest >= SMALLEST)
    rounded: Floats = np.rint(padded * inverse) * (largest / np.float32(127.0))
    return rounded.reshape(n_rows, -1)[:, :width]


def rotation_block(width: int) -> int:
    """Columns of a head that are rotated together: the largest power of two that divides the head width."""
    return min(width & -width, MOST_ROTATED)


def rotated(source: Floats) -> Floats:
    """Heads [..., K], each block times the orthonormal Hadamard matrix, which is its own inverse.

    Kernels and this function add the same numbers in the same order: neighbours first, then pairs ever further apart.
    """
    block, step = rotation_block(source.shape[-1]), 1
    turned: Floats = source * (np.float32(1.0) / np.sqrt(np.float32(block)))
    while step < block:
        pairs = turned.reshape(*source.shape[:-1], -1, 2, step)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        turned = np.stack([first + second, first - second], axis=-2).reshape(source.shape)
        step *= 2
    return turned


def _round_blocks(source: Floats, block: int, most: float, rounded: Callable[[Floats], Floats]) -> Floats:
    """Values [..., K] in units of a float16 scale per block, rounded, as what they stand for."""
    width = source.shape[-1]
    padded = np.pad(source.reshape(-1, width), ((0, 0), (0, -width % block)))
    padded = padded.reshape(len(padded), -1, block)
    largest = np.abs(padded).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(most), largest, out=np.zeros_like(largest), where=largest >= SMALLEST)
    scales = np.minimum(largest / np.float32(most), LARGEST_HALF).astype(np.float16).astype(np.float32)
    values: Floats = rounded(padded * inverse) * scales
    return values.reshape(len(values), -1)[:, :width].reshape(source.shape)


def _to_middle(values: Floats) -> Floats:
    middle: Floats = np.floor(values) + np.float32(0.5)
    return middle


def round_numbers(source: Floats, form: RoundedForm) -> Floats:
    """Values [..., K] as a form stores them, without rotation; scales are 65504 at most.

    q8: int8 per block of 32 with scale max / 127 as float16. q4: per block of 16, code - 7.5 times max / 7.5.
    """
    if form == "q8":
        return _round_blocks(source, ACTIVATION_BLOCK, 127.0, np.rint)
    return _round_blocks(source, NIBBLE_BLOCK, MIDDLE, _to_middle)


def round_cached(source: Floats, form: RoundedForm) -> Floats:
    """Heads [..., K] as they are read from a rotated and rounded cache, rotated back."""
    return rotated(round_numbers(rotated(source), form))


def round_queries(source: Floats) -> Floats:
    """Query heads [n, K] as a rounded cache is multiplied with them, rotated back."""
    return rotated(round_activations(rotated(source)))
