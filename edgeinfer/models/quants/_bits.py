"""Building blocks of formats: blocks of a row, packed bit planes, half floats, the 6-bit scales of the K formats.

In: uint8 arrays or views of them. Out: new arrays, with at most one temporary each. Independent of formats.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

NON_LINEAR_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The 4-bit levels of IQ4_NL and IQ4_XS. Source: kvalues_iq4nl in ggml-common.h."""


def blocks_of(raw: Bytes, block_bytes: int) -> Bytes:
    """Rows uint8[N, row_bytes] as blocks, uint8[N, blocks, block_bytes], a view where `raw` is contiguous."""
    return raw.reshape(raw.shape[0], raw.shape[1] // block_bytes, block_bytes)


def rows_of(parts: Bytes) -> NDArray[np.int8]:
    """Codes uint8[N, ...], in weight order, as int8[N, K]: the same bytes."""
    return parts.reshape(parts.shape[0], int(np.prod(parts.shape[1:]))).view(np.int8)


def planes(packed: Bytes, bits: int) -> Bytes:
    """Split each byte into 8 // bits fields, lowest first: uint8[..., n] -> uint8[..., 8 // bits, n]."""
    count, mask = 8 // bits, (1 << bits) - 1
    out = np.empty((*packed.shape[:-1], count, packed.shape[-1]), np.uint8)
    np.bitwise_and(packed, mask, out=out[..., 0, :])
    for plane in range(1, count):
        np.right_shift(packed, plane * bits, out=out[..., plane, :])
    if count > 2:
        out &= mask
    return out


def looked_up(indices: Bytes, levels: tuple[int, ...]) -> Bytes:
    """The signed byte `levels[i]` for each index i below 16, as uint8 of the same shape.

    `bytearray.translate` is three times as fast as indexing an array.
    """
    table = bytes(level & 0xFF for level in levels).ljust(256, b"\0")
    return np.frombuffer(bytearray(indices).translate(table), np.uint8).reshape(indices.shape)


def high_bits(packed: Bytes) -> Bytes:
    """The fifth bit of each of 32 codes as 16 or 0: uint8[..., 4] (little-endian, code 0 lowest) -> uint8[..., 32]."""
    bits = np.unpackbits(packed, axis=-1, bitorder="little")
    bits <<= 4
    return bits


def halves(packed: Bytes) -> Floats:
    """Little-endian float16 numbers as float32: uint8[..., 2 * n] -> float32[..., n]; NaN stays NaN."""
    with np.errstate(invalid="ignore"):
        return packed.view("<f2").astype(np.float32)


def scaled(unit: Floats, factors: NDArray[np.uint8] | NDArray[np.int8]) -> Floats:
    """unit float32[N, blocks, 1] times small integers [N, blocks, n], as float32[N, blocks * n]."""
    with np.errstate(invalid="ignore"):
        product: Floats = unit * factors.astype(np.float32)
    return product.reshape(product.shape[0], product.shape[1] * product.shape[2])


def six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minimums: uint8[..., 12] -> two of uint8[..., 8].

    Bytes 0-3 contain scales 0-3, bytes 4-7 minimums 0-3, bytes 8-11 the low nibbles of scales 4-7 and of minimums 4-7;
    the two high bits of those are the top bits of bytes 0-3 and 4-7. Source: get_scale_min_k4 in ggml-quants.c.
    """
    first, second, low = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate((first & 0x3F, (low & 0x0F) | ((first >> 2) & 0x30)), axis=-1)
    minimums = np.concatenate((second & 0x3F, (low >> 4) | ((second >> 2) & 0x30)), axis=-1)
    return scales, minimums
