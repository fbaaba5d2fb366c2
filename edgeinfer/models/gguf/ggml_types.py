"""The tensor types of ggml: id, name, and block size in weights and bytes.

Covers every type that files may contain, whether or not edgeinfer can read its weights. Source: enum ggml_type and the
type traits of ggml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GGMLType:
    """A tensor type: a block of `block_size` weights, consecutive in a row, takes `block_bytes` bytes."""

    id: int
    name: str
    block_size: int
    block_bytes: int


_TABLE = (
    GGMLType(0, "F32", 1, 4),
    GGMLType(1, "F16", 1, 2),
    GGMLType(2, "Q4_0", 32, 18),
    GGMLType(3, "Q4_1", 32, 20),
    GGMLType(6, "Q5_0", 32, 22),
    GGMLType(7, "Q5_1", 32, 24),
    GGMLType(8, "Q8_0", 32, 34),
    GGMLType(9, "Q8_1", 32, 40),
    GGMLType(10, "Q2_K", 256, 84),
    GGMLType(11, "Q3_K", 256, 110),
    GGMLType(12, "Q4_K", 256, 144),
    GGMLType(13, "Q5_K", 256, 176),
    GGMLType(14, "Q6_K", 256, 210),
    GGMLType(15, "Q8_K", 256, 292),
    GGMLType(16, "IQ2_XXS", 256, 66),
    GGMLType(17, "IQ2_XS", 256, 74),
    GGMLType(18, "IQ3_XXS", 256, 98),
    GGMLType(19, "IQ1_S", 256, 50),
    GGMLType(20, "IQ4_NL", 32, 18),
    GGMLType(21, "IQ3_S", 256, 110),
    GGMLType(22, "IQ2_S", 256, 82),
    GGMLType(23, "IQ4_XS", 256, 136),
    GGMLType(24, "I8", 1, 1),
    GGMLType(25, "I16", 1, 2),
    GGMLType(26, "I32", 1, 4),
    GGMLType(27, "I64", 1, 8),
    GGMLType(28, "F64", 1, 8),
    GGMLType(29, "IQ1_M", 256, 56),
    GGMLType(30, "BF16", 1, 2),
    # Ids 31-33 and 36-38 were rows of other formats, interleaved for one kind of CPU; ggml no longer reads them.
    GGMLType(31, "Q4_0_4_4", 32, 18),
    GGMLType(32, "Q4_0_4_8", 32, 18),
    GGMLType(33, "Q4_0_8_8", 32, 18),
    GGMLType(34, "TQ1_0", 256, 54),
    GGMLType(35, "TQ2_0", 256, 66),
    GGMLType(36, "IQ4_NL_4_4", 32, 18),
    GGMLType(37, "IQ4_NL_4_8", 32, 18),
    GGMLType(38, "IQ4_NL_8_8", 32, 18),
    GGMLType(39, "MXFP4", 32, 17),
    GGMLType(40, "NVFP4", 64, 36),
    GGMLType(41, "Q1_0", 128, 18),
)

GGML_TYPES: Mapping[int, GGMLType] = MappingProxyType({row.id: row for row in _TABLE})


def type_name(ggml_type: int) -> str:
    """ggml's name of a type id, such as 'Q4_1'; 'type 77' for an id that ggml does not have."""
    row = GGML_TYPES.get(ggml_type)
    return row.name if row is not None else f"type {ggml_type}"
