"""Code books of the IQ formats: tables of 4 or 8 weights each that a code names, and the signs that go with them.

In: indices and packed signs. Out: codes as signed bytes. Knows the formats by their names in `codebooks.npz` alone,
which `scripts/make_codebooks.py` writes. Source: the grids and `ksigns_iq2xs` of ggml-common.h.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import Bytes, Floats

Codes8 = NDArray[np.int8]
Indices = NDArray[np.integer[Any]]


@cache
def book(name: str) -> Codes8:
    """The code book of a format: int8[entries, weights]."""
    with files("edgeinfer.models.quants").joinpath("codebooks.npz").open("rb") as file, np.load(file) as books:
        table: Codes8 = books[name]
    table.setflags(write=False)
    return table


def signed(codes: Codes8, signs: Bytes) -> Codes8:
    """Codes int8[N, K], those negated whose bit in signs uint8[..., K / 8] is set, lowest bit first."""
    negative = np.unpackbits(signs.reshape(len(codes), -1), axis=-1, bitorder="little")
    return np.negative(codes, where=negative.astype(bool), out=codes)


def with_parity(signs: Indices) -> Bytes:
    """The signs of eight weights of which seven are stored: the eighth makes their number even."""
    seven = (signs & 0x7F).astype(np.uint8)
    folded = seven ^ (seven >> 4)
    folded ^= folded >> 2
    folded ^= folded >> 1
    eight: Bytes = seven | ((folded & 1) << 7).astype(np.uint8)
    return eight


def words(packed: Bytes, dtype: str) -> NDArray[np.unsignedinteger[Any]]:
    """Little-endian numbers in the last axis of packed bytes."""
    numbers: NDArray[np.unsignedinteger[Any]] = np.ascontiguousarray(packed).view(dtype)
    return numbers


def nibbles(packed: Bytes) -> Bytes:
    """Low, then high nibble of each byte: uint8[..., n] -> uint8[..., 2 * n]."""
    return fields(packed, 4)


def fields(packed: Bytes, bits: int) -> Bytes:
    """The 8 // bits fields of each byte, lowest first: uint8[..., n] -> uint8[..., n * 8 // bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    split: Bytes = (packed[..., np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return split.reshape(*packed.shape[:-1], -1)


def half_steps(unit: Floats, steps: Indices, factor: float) -> Floats:
    """unit * (0.5 + step) * factor, rounded in this order: float32[N, blocks, 1], [N, blocks, n] -> [N, groups]."""
    with np.errstate(invalid="ignore", over="ignore"):
        scales: Floats = unit * (np.float32(0.5) + steps.astype(np.float32)) * np.float32(factor)
    return scales.reshape(len(scales), -1)


def odd_steps(unit: Floats, steps: Indices) -> Floats:
    """unit * (2 * step + 1), in eighths: float32[N, blocks, 1], [N, blocks, n] -> [N, groups]."""
    with np.errstate(invalid="ignore", over="ignore"):
        scales: Floats = unit * (2 * steps + 1).astype(np.float32) * np.float32(0.125)
    return scales.reshape(len(scales), -1)


def eighths(indices: Indices, subtracts: Indices) -> Codes8:
    """Entries of IQ1's code book in eighths, each moved by one: [N, blocks, n] -> int8[N, K]."""
    moved = book("iq1_s")[indices] * np.int8(8)
    moved += (1 - 2 * subtracts.astype(np.int8))[..., np.newaxis]
    return moved.reshape(len(moved), -1)
