"""Matrices as ONNX Runtime multiplies them: codes of 4 or 8 bits with float32 scales, or plain float32.

In: quant formats, rows of a GGUF file, ops of a stage. Out: the arrays that become initialisers, and their sizes from a
header alone; adjacent products of the same source and form merged into one, as the runtime has a cost per node.
MatMulNBits computes scale * (code - middle), where middle is 8 or 128. This represents all of our formats exactly
except for minimums: these are a second, small product of the block sums of the input and the float32 minimums, because
the operator's own zero points are integers. Independent of graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import Floats
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.models.quants import BlockFormat, QuantFormat, format_of

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


@dataclass(frozen=True, slots=True)
class ProductGroup:
    """Products of one source with their rows stacked; each op takes its own columns of the result."""

    ops: tuple[MatMul, ...]
    source: QuantFormat
    form: Form

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(op.weight for op in self.ops)

    @property
    def biases(self) -> tuple[Weight, ...]:
        """The biases of all ops, or nothing: products are merged only if all have a bias or none has."""
        return tuple(op.bias for op in self.ops if op.bias is not None)

    @property
    def heights(self) -> tuple[int, ...]:
        return tuple(op.weight.n_rows for op in self.ops)

    @property
    def nbytes(self) -> int:
        """Bytes of its initialisers."""
        matrix = self.form.nbytes(sum(self.heights), self.ops[0].weight.columns)
        return matrix + 4 * sum(bias.n_rows for bias in self.biases)


def joined(ops: Iterable[Op], tensors: Mapping[str, TensorInfo]) -> Iterator[Op | ProductGroup]:
    """The ops in order, every MatMul in a Product."""
    open_group: ProductGroup | None = None
    for op in ops:
        if not isinstance(op, MatMul):
            if open_group is not None:
                yield open_group
                open_group = None
            yield op
            continue
        source = format_of(tensors[op.weight.tensor].ggml_type)
        if open_group is not None and _may_join(open_group, op, source):
            open_group = ProductGroup((*open_group.ops, op), source, open_group.form)
            continue
        if open_group is not None:
            yield open_group
        open_group = ProductGroup((op,), source, form_of(source))
    if open_group is not None:
        yield open_group


def _may_join(group: ProductGroup, op: MatMul, source: QuantFormat) -> bool:
    last = group.ops[-1]
    return (
        not (op.accumulate or last.accumulate)
        and op.source == last.source
        and op.source not in {other.out for other in (*group.ops, op)}
        and op.out not in {other.out for other in group.ops}
        and source.ggml_type == group.source.ggml_type
        and op.weight.columns == last.weight.columns
        and (op.bias is None) == (last.bias is None)
    )
