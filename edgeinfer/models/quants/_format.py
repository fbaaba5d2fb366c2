"""Types of quant formats: block formats with the codes they unpack to, and float formats.

In and out: nothing; every file of this folder defines one. Independent of particular formats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.quants._layout import BlockLayout


@dataclass(frozen=True, slots=True)
class Codes:
    """Unpacked rows: value[r, c] = scale[r, c // group] * codes[r, c] (+ minimum[r, c // group]).

    codes int8[N, K] (int8 for unsigned formats too), scale float32[N, K // group], minimum the same or None.
    """

    codes: NDArray[np.int8]
    scale: NDArray[np.float32]
    minimum: NDArray[np.float32] | None

    def write_values(self, values: NDArray[np.float32]) -> None:
        """Write the float32 values of all rows into `values`, float32[N, K], C-contiguous.

        One product and one sum per weight, each rounded to float32. Infinite scales and overflow give inf or nan.
        """
        groups = (*self.scale.shape, self.codes.shape[1] // max(1, self.scale.shape[1]))
        grouped = values.reshape(groups)
        with np.errstate(invalid="ignore", over="ignore"):
            np.multiply(self.codes.reshape(groups), self.scale[..., np.newaxis], out=grouped)
            if self.minimum is not None:
                grouped += self.minimum[..., np.newaxis]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of blocks of integer codes with shared scales.

    `name` is ggml's; `block_size` weights take `block_bytes` bytes; `group` columns (32 or 16) share a scale;
    `code_range` is inclusive; `f16_scales`: every scale and minimum is exactly a float16. `unpack` takes uint8[N,
    row_bytes] and returns the Codes of N rows. `layout` describes the bit positions, for devices that rearrange them; a
    format without one is unpacked instead, and takes more memory if its scales are not float16.
    """

    name: str
    ggml_type: int
    block_size: int
    block_bytes: int
    group: int
    code_range: tuple[int, int]
    has_minimum: bool
    f16_scales: bool
    unpack: Callable[[NDArray[np.uint8]], Codes]
    layout: BlockLayout | None = None


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A format of plain floats: `decode` takes uint8[N, row_bytes] and returns float32[N, K], possibly a view."""

    name: str
    ggml_type: int
    block_size: int
    block_bytes: int
    decode: Callable[[NDArray[np.uint8]], NDArray[np.float32]]


QuantFormat: TypeAlias = BlockFormat | FloatFormat
