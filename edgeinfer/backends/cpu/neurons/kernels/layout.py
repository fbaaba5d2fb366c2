"""The layout of single neurons of a feed-forward layer: each neuron's own bytes together, and what all neurons share.

In: quant formats and sizes, or rows of matrices. Out: sizes, from a header alone, and arrays. A neuron's record holds
its row of the up matrix (if there is a gate) as a panel of 16 rows holds it, then its column of the down matrix without
scales. Scales of the down matrix, which 32 neurons share, are kept apart and stay in memory, so a sum over a block's
neurons is an exact integer whichever zeros are left out of it. The gate matrix is always multiplied whole and is not
part of it. Plain NumPy; knows neither files nor kernels.
Column layout: 4 bits: code less the lowest one, rows in runs of 32, byte b of a run's 16: row b low, row 16 + b high;
8 bits: signed codes in order; floats in order. Rows are padded to whole runs.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.padding import padded
from edgeinfer.backends.cpu.layout.panels import (
    BLOCK,
    PANEL_ROWS,
    UNIT_ROWS,
    FloatPanel,
    IntegerPanel,
    pack_codes,
    panel_for,
)
from edgeinfer.backends.cpu.layout.recipes import Recipe, Recipes
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
    if form.block_size != BLOCK or not form.f16_scales:
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


ALIGNMENT = 64
"""Both parts of a record begin at a cache line."""


@dataclass(frozen=True, slots=True)
class Region:
    """`count` numbers of `size` bytes for each row of a panel's record, from byte `at` on: [count, 16, size]."""

    at: int
    size: Literal[1, 2, 4]
    count: int

    @property
    def words(self) -> int:
        """Four-byte words that hold a row's numbers, the last one padded with zeros."""
        return -(-self.size * self.count // 4)


def regions(panel: IntegerPanel) -> tuple[Region, ...]:
    """The regions of a panel's record, in order; codes come four bytes at a time."""
    n_groups = panel.record_columns // panel.group
    n_scales: Literal[1, 2, 4] = 1 if panel.scale_bytes == PANEL_ROWS else 2 if panel.scales == "f16" else 4
    n_units: Literal[2, 4] = 2 if panel.unit_bytes == 2 * PANEL_ROWS else 4
    found = [Region(0, n_units, 1 + panel.has_minimum)] if panel.has_units else []
    if panel.scales != "unit":
        found.append(Region(panel.scales_at, n_scales, n_groups))
    if panel.has_minimum and panel.scales != "u4":
        found.append(Region(panel.minima_at, n_scales, n_groups))
    n_codes = panel.record_columns // BLOCK * panel.code_bytes // (4 * PANEL_ROWS)
    return (*found, Region(panel.codes_at, 4, n_codes))


def row_record_bytes(panel: IntegerPanel) -> int:
    """Bytes that belong to one row of a panel's record."""
    return sum(4 * region.words for region in regions(panel))


def rows_of_panels(panel: IntegerPanel, data: Bytes) -> Bytes:
    """Panels uint8[n, panel_bytes] row by row: uint8[16 * n, row bytes], record after record."""
    n_panels, n_records = len(data), data.shape[1] // panel.record_bytes
    records = data.reshape(n_panels, n_records, panel.record_bytes)
    parts = []
    for region in regions(panel):
        held = records[:, :, region.at : region.at + region.count * PANEL_ROWS * region.size]
        held = held.reshape(n_panels, n_records, region.count, PANEL_ROWS, region.size).transpose(0, 3, 1, 2, 4)
        own = held.reshape(n_panels, PANEL_ROWS, n_records, -1)
        parts.append(np.pad(own, ((0, 0),) * 3 + ((0, -own.shape[-1] % 4),)))
    return np.concatenate(parts, axis=-1).reshape(n_panels * PANEL_ROWS, -1)


def panels_of_rows(panel: IntegerPanel, rows: Bytes) -> Bytes:
    """The inverse: uint8[16 * n, row bytes] as panels, uint8[n, panel_bytes]."""
    n_panels, row_bytes = len(rows) // PANEL_ROWS, row_record_bytes(panel)
    held = rows.reshape(n_panels, PANEL_ROWS, -1, row_bytes)
    records = np.zeros((n_panels, held.shape[2], panel.record_bytes), np.uint8)
    start = 0
    for region in regions(panel):
        stop = start + region.size * region.count
        part = held[..., start:stop].reshape(n_panels, PANEL_ROWS, -1, region.count, region.size)
        part = part.transpose(0, 2, 3, 1, 4).reshape(n_panels, held.shape[2], -1)
        records[:, :, region.at : region.at + part.shape[-1]] = part
        start += 4 * region.words
    return records.reshape(n_panels, -1)


def rows_of_raw(form: BlockFormat, raw: Bytes) -> Bytes:
    """Rows of a file uint8[n, row_bytes] as panels hold them, row by row: uint8[n, row bytes of a NeuronLayout]."""
    panel = panel_for(form)
    assert isinstance(panel, IntegerPanel)
    columns = raw.shape[1] // form.block_bytes * form.block_size
    parts = Recipes().parts(form, columns)
    if not parts:  # a format whose bit layout is unknown
        padded_raw = np.pad(raw, ((0, -len(raw) % PANEL_ROWS), (0, 0)))
        data = np.zeros((len(padded_raw) // PANEL_ROWS, panel.panel_bytes(columns)), np.uint8)
        pack_codes(panel, form.unpack(padded_raw), data)
        return rows_of_panels(panel, data)[: len(raw)]
    found, row_bytes, skip = [], row_record_bytes(panel), 0
    for n_records, recipe in parts:
        end = skip + n_records * recipe.source_bytes
        source = raw[:, skip:end].reshape(len(raw), n_records, recipe.source_bytes)
        found.append(_moved(panel, recipe, source).reshape(len(raw), n_records * row_bytes))
        skip = end
    return np.concatenate(found, axis=1)


def _moved(panel: IntegerPanel, recipe: Recipe, source: Bytes) -> Bytes:
    """Pack rows' parts uint8[n, records, source bytes] as `kernels.weights.packing` does, row by row."""
    words = np.pad(source, ((0, 0), (0, 0), (0, 4)))
    found = np.zeros((*source.shape[:2], row_record_bytes(panel)), np.uint8)
    terms = iter(recipe.terms.tolist())
    for at, row_bits, flip, n_terms in recipe.stores.tolist():
        total = np.full(source.shape[:2], flip, np.uint32)
        for byte, shift, keep, factor, mask in itertools.islice(terms, n_terms):
            bits = np.ascontiguousarray(words[..., byte : byte + 4]).view("<u4")[..., 0]
            total ^= ((bits >> np.uint32(shift) & np.uint32(keep)) * np.uint32(factor)) & np.uint32(mask)
        first, size = _place_in_row(panel, at), row_bits // 8
        found[..., first : first + size] = total[..., None].view(np.uint8)[..., :size]
    return found


def _place_in_row(panel: IntegerPanel, at: int) -> int:
    """Where a row's record has the numbers that begin at byte `at` of a panel's record."""
    start = 0
    for region in regions(panel):
        if region.at <= at < region.at + region.count * PANEL_ROWS * region.size:
            return start + (at - region.at) // PANEL_ROWS
        start += 4 * region.words
    raise AssertionError(at)


@dataclass(frozen=True, slots=True)
class NeuronLayout:
    """The records of a layer of `n_neurons` between `width` inputs and as many outputs.

    `up`: the panel of the up matrix; None without a gate, when the single product before the activation is whole.
    """

    width: int
    n_neurons: int
    up: IntegerPanel | None
    down: ColumnForm

    @property
    def row_bytes(self) -> int:
        """Bytes of a neuron's row of the up matrix."""
        return 0 if self.up is None else self.up.n_records(self.width) * row_record_bytes(self.up)

    @property
    def column_at(self) -> int:
        """Where a neuron's column begins in its record."""
        return padded(self.row_bytes, ALIGNMENT)

    @property
    def column_bytes(self) -> int:
        return self.down.nbytes(self.width)

    @property
    def record_bytes(self) -> int:
        """Bytes of a neuron's record."""
        return self.column_at + padded(self.column_bytes, ALIGNMENT)

    @property
    def n_blocks(self) -> int:
        """Blocks of 32 neurons, in pairs like those of the rounded activations."""
        return padded(-(-self.n_neurons // BLOCK), 2)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the scales and minima that stay in memory."""
        n_numbers = self.n_blocks * padded(self.width, UNIT_ROWS)
        return 2 * n_numbers * (self.down.has_scales + self.down.has_minimum)

    def cut(self, up: BlockFormat | None, up_rows: Bytes, down: QuantFormat, down_rows: Bytes, first: int) -> Bytes:
        """Make records of the neurons from `first` on, one for each of `up_rows`, from a file's rows.

        up_rows: uint8[n, row_bytes] of these neurons, uint8[n, 0] without a gate; down_rows: uint8[width, row_bytes].
        `first`, and the end unless it is the layer's, are multiples of 32.
        """
        rows = None if up is None else rows_of_raw(up, up_rows)
        return self.records(rows, columns_of(down, down_rows, first, first + len(up_rows)))

    def records(self, rows: Bytes | None, columns: Bytes) -> Bytes:
        """Records uint8[n, record_bytes] of neurons: rows uint8[n, row_bytes], columns uint8[n, column_bytes]."""
        found = np.zeros((len(columns), self.record_bytes), np.uint8)
        if rows is not None:
            found[:, : self.row_bytes] = rows
        found[:, self.column_at : self.column_at + self.column_bytes] = columns
        return found

    def parts(self, records: Bytes) -> tuple[Bytes, Bytes]:
        """The inverse: rows and columns."""
        return records[:, : self.row_bytes], records[:, self.column_at : self.column_at + self.column_bytes]


def neuron_layout(up: QuantFormat | None, down: QuantFormat, width: int, n_neurons: int) -> NeuronLayout | None:
    """The layout of a layer with these formats; None if single neurons cannot give bit-identical results.

    Such a layer is read whole: its up matrix has floats, or rows that share bytes; or its down matrix no `column_form`.
    """
    panel, form = None if up is None else panel_for(up), column_form(down)
    if form is None or isinstance(panel, FloatPanel) or (panel is not None and panel.rows_share_bytes):
        return None
    return NeuronLayout(width, n_neurons, panel, form)
