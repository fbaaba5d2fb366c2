"""The layout of single neurons of a feed-forward layer: each neuron's own bytes together, and what all neurons share.

In: quant formats and sizes, or rows of matrices. Out: sizes, from a header alone, and arrays. A neuron's record holds
its row of the up matrix (if there is a gate) as a panel of 16 rows holds it, then its column of the down matrix without
scales. Scales of the down matrix, which 32 neurons share, are kept apart and stay in memory. The gate matrix is always
multiplied whole and is not part of it. Plain NumPy; knows neither files nor kernels.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.columns import ColumnForm, column_form, columns_of
from edgeinfer.backends.cpu.layout.padding import padded
from edgeinfer.backends.cpu.layout.panels import BLOCK, PANEL_ROWS, UNIT_ROWS, IntegerPanel, pack_codes, panel_for
from edgeinfer.backends.cpu.layout.recipes import Recipe, Recipes
from edgeinfer.models.quants import BlockFormat, QuantFormat

Bytes = NDArray[np.uint8]
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
    found = [Region(0, 2, 1 + panel.has_minimum)] if panel.has_units else []
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
    for at, size, flip, n_terms in recipe.stores.tolist():
        total = np.full(source.shape[:2], flip, np.uint32)
        for byte, shift, keep, factor, mask in itertools.islice(terms, n_terms):
            bits = np.ascontiguousarray(words[..., byte : byte + 4]).view("<u4")[..., 0]
            total ^= ((bits >> np.uint32(shift) & np.uint32(keep)) * np.uint32(factor)) & np.uint32(mask)
        first = _place_in_row(panel, at)
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

    Such a layer is read whole: it has a float up matrix, or a down matrix without a `columns.column_form`.
    """
    panel, form = None if up is None else panel_for(up), column_form(down)
    if form is None or not (panel is None or isinstance(panel, IntegerPanel)):
        return None
    return NeuronLayout(width, n_neurons, panel, form)
