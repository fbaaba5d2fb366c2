"""NVFP4 with a scale of the whole matrix, which every block of 256 weights repeats; no file has this type.

Block, 148 bytes: float32 scale, sixteen e4m3 scales of groups, then the groups' nibbles as in `nvfp4`. In: raw rows,
made by `models.gguf.tensor_scales`. Out: codes. Source: as `nvfp4`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.gguf.header import SCALED_TYPES, GGMLType
from edgeinfer.models.quants._bits import blocks_of, looked_up, planes, rows_of
from edgeinfer.models.quants._format import BlockFormat, Codes
from edgeinfer.models.quants._layout import BlockLayout, Plane
from edgeinfer.models.quants.mxfp4 import DOUBLED_LEVELS
from edgeinfer.models.quants.nvfp4 import GROUP, HALF_SCALES

FACTOR_BYTES = 4


def unpack(raw: NDArray[np.uint8], kind: GGMLType) -> Codes:
    """uint8[N, row_bytes] -> the Codes of N rows."""
    blocks, codes_at = blocks_of(raw, kind.block_bytes), FACTOR_BYTES + kind.block_size // GROUP
    factor = np.ascontiguousarray(blocks[..., :FACTOR_BYTES]).view("<f4")
    with np.errstate(invalid="ignore", over="ignore"):
        scales = HALF_SCALES[blocks[..., FACTOR_BYTES:codes_at]] * factor
    nibbles = planes(blocks[..., codes_at:].reshape(*blocks.shape[:2], -1, GROUP // 2), 4)
    return Codes(rows_of(looked_up(nibbles, DOUBLED_LEVELS)), scales.reshape(len(raw), -1), None)


def scaled_format(kind: GGMLType) -> BlockFormat:
    """The format of a type whose blocks repeat the scale."""
    codes_at = FACTOR_BYTES + kind.block_size // GROUP
    runs = tuple((codes_at + 16 * run, 0) for run in range(kind.block_size // 32))
    return BlockFormat(
        name=kind.name,
        ggml_type=kind.id,
        block_size=kind.block_size,
        block_bytes=kind.block_bytes,
        group=GROUP,
        code_range=(-12, 12),
        has_minimum=False,
        f16_scales=False,
        unpack=lambda raw: unpack(raw, kind),
        layout=BlockLayout(
            planes=(Plane(4, "eights", runs),), scale=FACTOR_BYTES, unit="e4m3", levels=DOUBLED_LEVELS, factor=0
        ),
    )


FORMAT = scaled_format(SCALED_TYPES[0])
