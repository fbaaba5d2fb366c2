"""Columns of a down matrix, one for each neuron: bare codes, and the scales that blocks of 32 neurons share.

In: a quant format, rows of a matrix. Out: `ColumnForm`s, columns, scales. Integer codes of one block of a row share a
scale, so a sum over a block's neurons is an exact integer whichever zeros are left out of it. Plain NumPy.
Column layout: 4 bits: code less the lowest one, rows in runs of 32, byte b of a run's 16: row b low, row 16 + b high;
8 bits: signed codes in order; floats in order. Rows are padded to whole runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.padding import padded
from edgeinfer.backends.cpu.layout.panels import BLOCK, UNIT_ROWS
from edgeinfer.models.quants import BlockFormat, FloatFormat, QuantFormat

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]
Code: TypeAlias = Literal["u4", "i8", "f16", "bf16", "f32"]
CODE_BITS: dict[Code, int] = {"u4": 4, "i8": 8, "f16": 16, "bf16": 16, "f32": 32}


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """How columns of a format are stored. `lowest`: the value of a stored 0 of "u4"; other codes are unchanged."""

    code: Code
    lowest: int = 0
    has_minimum: bool = False

    @property
    def key(self) -> str:
        """A name for kernels; the inverse of `parse`."""
        return f"{self.code}{'-min' * self.has_minimum}"

    @classmethod
    def parse(cls, key: str) -> ColumnForm:
        """The form of a key."""
        code, _, minimum = key.partition("-")
        assert code in CODE_BITS
        return cls(code, -8 if code == "u4" and not minimum else 0, bool(minimum))

    @property
    def has_scales(self) -> bool:
        """Whether blocks of 32 neurons share a scale in each row; otherwise columns are floats."""
        return self.code in ("u4", "i8")

    def nbytes(self, n_rows: int) -> int:
        """Bytes of a column."""
        return padded(n_rows, UNIT_ROWS) * CODE_BITS[self.code] // 8


def column_form(form: QuantFormat) -> ColumnForm | None:
    """How columns of a format are stored; None if its scales are more than one float16 for every 32 columns."""
    if isinstance(form, FloatFormat):
        codes: dict[str, Code] = {"F16": "f16", "BF16": "bf16", "F32": "f32"}
        return ColumnForm(codes[form.name]) if form.name in codes else None
    if form.group != BLOCK or not form.f16_scales:
        return None
    is_nibble = form.code_range == ((0, 15) if form.has_minimum else (-8, 7))
    return ColumnForm("u4" if is_nibble else "i8", form.code_range[0] if is_nibble else 0, form.has_minimum)


def columns_of(form: QuantFormat, raw: Bytes, first: int, stop: int) -> Bytes:
    """Columns `first` to `stop` - 1 of all rows uint8[N, row_bytes]: uint8[stop - first, column bytes].

    Both ends are multiples of the format's block, or the end of the row.
    """
    kept, n_rows = column_form(form), len(raw)
    assert kept is not None
    start, end = (-(-place // form.block_size) * form.block_bytes for place in (first, stop))
    part, missing = raw[:, start:end], -n_rows % UNIT_ROWS
    if isinstance(form, FloatFormat):
        values = np.pad(part.reshape(n_rows, -1, form.block_bytes), ((0, missing), (0, 0), (0, 0)))
        return np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(stop - first, -1)
    assert isinstance(form, BlockFormat)
    codes = np.pad(form.unpack(np.ascontiguousarray(part)).codes, ((0, missing), (0, 0))).T
    if kept.code == "i8":
        return np.ascontiguousarray(codes).view(np.uint8)
    runs: Bytes = (codes - np.int8(kept.lowest)).view(np.uint8).reshape(stop - first, -1, 2, 16)
    packed: Bytes = runs[:, :, 0] | (runs[:, :, 1] << np.uint8(4))
    return packed.reshape(stop - first, -1)


def codes_of_columns(kept: ColumnForm, columns: Bytes, n_rows: int) -> NDArray[np.int8]:
    """The inverse for integer codes: int8[n_rows, n]."""
    if kept.code == "i8":
        return columns.view(np.int8).T[:n_rows]
    packed = columns.reshape(len(columns), -1, 1, 16)
    runs = np.concatenate([packed & 0xF, packed >> 4], axis=2).reshape(len(columns), -1)
    return (runs.view(np.int8) + np.int8(kept.lowest)).T[:n_rows]


def shared_scales(form: BlockFormat, raw: Bytes, n_blocks: int) -> tuple[Halves, Halves | None]:
    """Scales, and minima if any, of all rows uint8[N, row_bytes]: float16[n_blocks, padded N], zero-padded."""
    codes = form.unpack(raw)
    return _by_block(codes.scale, n_blocks), None if codes.minimum is None else _by_block(codes.minimum, n_blocks)


def _by_block(numbers: NDArray[np.float32], n_blocks: int) -> Halves:
    n_rows, n_used = numbers.shape
    found = np.zeros((n_blocks, padded(n_rows, UNIT_ROWS)), np.float16)
    found[:n_used, :n_rows] = numbers.T
    return found
