"""NVFP4: 64 weights as 4-bit floats (e2m1), in groups of 16 with an 8-bit float (e4m3, unsigned) as scale.

Block, 36 bytes: four scales, then 8 bytes of nibbles for each group (low: weights 0-7, high: 8-15). The codes are twice
the e2m1 values, so that they are integers, and a group's scale is half of what its byte says; the highest bit of the
byte is not read, and 127 is zero. In: raw rows. Out: codes. Source: dequantize_row_nvfp4 in ggml-quants.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._bits import blocks_of, looked_up, planes, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, Plane
from edgeinfer.models.quants.mxfp4 import DOUBLED_LEVELS


def _half_scales() -> NDArray[np.float32]:
    """Half the value of each scale byte: float32[256]."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, (byte & 7).astype(np.float32)
    normal = np.ldexp(np.float32(1) + mantissa / 8, exponent - 8)
    values = np.where(exponent == 0, np.ldexp(mantissa, -10), normal).astype(np.float32)
    values[0x7F] = 0
    return values


GROUP = 16
HALF_SCALES = _half_scales()
"""Of groups of weights, by byte."""


def unpack(raw: NDArray[np.uint8]) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks = blocks_of(raw, 36)
    nibbles = planes(blocks[..., 4:].reshape(*blocks.shape[:2], 4, 8), 4)
    codes = rows_of(looked_up(nibbles, DOUBLED_LEVELS))
    return Codes(codes, HALF_SCALES[blocks[..., :4]].reshape(len(raw), -1), None)


FORMAT = BlockFormat(
    name="NVFP4",
    ggml_type=40,
    block_size=64,
    block_bytes=36,
    group=GROUP,
    code_range=(-12, 12),
    has_minimum=False,
    f16_scales=True,
    unpack=unpack,
    layout=BlockLayout(planes=(Plane(4, "eights", ((4, 0), (20, 0))),), scale=0, unit="e4m3", levels=DOUBLED_LEVELS),
)
