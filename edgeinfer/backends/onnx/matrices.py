"""Matrices as ONNX Runtime multiplies them: codes of 4 or 8 bits with float32 scales, or plain float32.

In: quant formats, rows of a GGUF file. Out: the arrays that become initialisers, and their sizes from a header alone.
MatMulNBits computes scale * (code - middle), where middle is 8 or 128. This represents all of our formats exactly
except for minimums: these are a second, small product of the block sums of the input and the float32 minimums, because
the operator's own zero points are integers. Independent of graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, QuantFormat

NIBBLES = (0, 15)
"""Unsigned 4-bit codes are stored unchanged; the middle is moved into the minimum."""
ROWS_AT_ONCE = 2048
BLOCKS = (16, 32, 64, 128, 256)
"""Numbers of columns that may share a scale."""


@dataclass(frozen=True, slots=True)
class BlockForm:
    """Codes of `bits` bits; `block` columns share a scale (and a minimum). `shift` is added to a format's codes."""

    bits: int
    block: int
    has_minimum: bool
    shift: int

    def nbytes(self, n_rows: int, columns: int) -> int:
        """Bytes of codes, scales, minimums, and of what the runtime stores per block: scale * middle."""
        numbers = 3 if self.has_minimum else 2
        return n_rows * (columns * self.bits // 8 + 4 * numbers * (columns // self.block))


@dataclass(frozen=True, slots=True)
class PlainFloats:
    """Plain float32."""

    def nbytes(self, n_rows: int, columns: int) -> int:
        """Bytes of the values."""
        return 4 * n_rows * columns


Form = BlockForm | PlainFloats


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix of N rows and K columns in blocks: value = scale * (code - middle) (+ minimum).

    codes uint8[N, K / block, block * bits / 8], the first of two nibbles low; scales float32[N, K / block]; minimums
    float32[K / block, N] or None
    """

    form: BlockForm
    codes: NDArray[np.uint8]
    scales: Floats
    minimums: Floats | None


def form_of(form: QuantFormat) -> Form:
    """The form of a format. Formats whose codes or blocks MatMulNBits lacks become float32."""
    if not isinstance(form, BlockFormat) or form.group not in BLOCKS:
        return PlainFloats()
    lowest, highest = form.code_range
    if lowest >= -8 and highest <= 7:
        return BlockForm(4, form.group, form.has_minimum, 8)
    if form.has_minimum and NIBBLES[0] <= lowest and highest <= NIBBLES[1]:
        return BlockForm(4, form.group, True, 0)
    if lowest >= -128 and highest <= 127:
        return BlockForm(8, form.group, form.has_minimum, 128)
    return PlainFloats()


def blocks(file: GGUFFile, parts: Sequence[Weight], source: BlockFormat, form: BlockForm) -> Blocks:
    """The rows of several weights of one format and width, stacked."""
    n_rows, columns = sum(part.n_rows for part in parts), parts[0].columns
    n_blocks = columns // form.block
    codes = np.empty((n_rows, n_blocks, form.block * form.bits // 8), np.uint8)
    scales = np.empty((n_rows, n_blocks), np.float32)
    minimums = np.empty((n_blocks, n_rows), np.float32) if form.has_minimum else None
    at = 0
    for part in parts:
        raw = weights.raw_rows(file, part)
        for first in range(0, part.n_rows, ROWS_AT_ONCE):
            unpacked = source.unpack(raw[first : first + ROWS_AT_ONCE])
            rows = slice(at, at + len(unpacked.codes))
            shifted = (unpacked.codes.view(np.uint8) + np.uint8(form.shift)).reshape(len(unpacked.codes), n_blocks, -1)
            codes[rows] = shifted if form.bits == 8 else shifted[..., 0::2] | shifted[..., 1::2] << 4
            scales[rows] = unpacked.scale
            if minimums is not None and unpacked.minimum is not None:
                middle = (1 << form.bits - 1) - form.shift
                minimums[:, rows] = (unpacked.minimum + np.float32(middle) * unpacked.scale).T
            at = rows.stop
    return Blocks(form, codes, scales, minimums)


def floats(file: GGUFFile, parts: Sequence[Weight]) -> Floats:
    """The exact values of several weights, stacked: float32[N, K]."""
    values = np.empty((sum(part.n_rows for part in parts), parts[0].columns), np.float32)
    at = 0
    for part in parts:
        for first in range(0, part.n_rows, ROWS_AT_ONCE):
            stop = min(first + ROWS_AT_ONCE, part.n_rows)
            values[at + first : at + stop] = _some_rows(file, part, first, stop)
        at += part.n_rows
    return values


def _some_rows(file: GGUFFile, part: Weight, first: int, stop: int) -> Floats:
    if part.order is not None:
        return weights.matrix(file, part)[first:stop]
    return weights.matrix(file, Weight(part.tensor, part.start + first, part.start + stop, part.columns))
