"""Single neurons of a feed-forward layer: the bytes that only one neuron needs, together, and what all share.

In: quant formats and sizes, or rows of matrices. Out: sizes, from a header alone, and arrays. A neuron's record holds
its row of the up matrix (where there is a gate) as a panel of 16 rows holds it, then its column of the down matrix
without scales. Scales of the down matrix, which 32 neurons share, are kept apart: they stay in memory. The gate is
multiplied whole and is no part of it. Plain NumPy; knows neither files nor kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.columns import ColumnForm, column_form
from edgeinfer.backends.cpu.layout import padded
from edgeinfer.backends.cpu.panels import BLOCK, PANEL_ROWS, UNIT_ROWS, IntegerPanel, panel_for
from edgeinfer.models.quants import QuantFormat

Bytes = NDArray[np.uint8]
ALIGNMENT = 64
"""Both parts of a record begin with a cache line."""


@dataclass(frozen=True, slots=True)
class Region:
    """`count` numbers of `size` bytes for each row of a panel's record, from byte `at` on: [count, 16, size]."""

    at: int
    size: Literal[1, 2, 4]
    count: int

    @property
    def words(self) -> int:
        """Words of four bytes that hold a row's numbers, the last one filled up with zeros."""
        return -(-self.size * self.count // 4)


def regions(panel: IntegerPanel) -> tuple[Region, ...]:
    """What a record of a panel holds, in order; codes come four bytes at a time."""
    n_groups = panel.record_columns // panel.group
    n_scales: Literal[1, 2, 4] = 1 if panel.scale_bytes == PANEL_ROWS else 2 if panel.scales == "f16" else 4
    found = [Region(0, 2, 1 + panel.has_minimum)] if panel.has_units else []
    found.append(Region(panel.scales_at, n_scales, n_groups))
    if panel.has_minimum and panel.scales != "u4":
        found.append(Region(panel.minima_at, n_scales, n_groups))
    n_codes = panel.record_columns // BLOCK * panel.code_bytes // (4 * PANEL_ROWS)
    return (*found, Region(panel.codes_at, 4, n_codes))


def row_record_bytes(panel: IntegerPanel) -> int:
    """Bytes that a row has of a panel's record."""
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


@dataclass(frozen=True, slots=True)
class NeuronLayout:
    """The records of a layer of `n_neurons` between `width` inputs and as many outputs.

    `up`: the panel of the up matrix, None without a gate, where the one product before the activation is whole.
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
        """Bytes of a neuron."""
        return self.column_at + padded(self.column_bytes, ALIGNMENT)

    @property
    def n_blocks(self) -> int:
        """Blocks of 32 neurons; as the rounded activations they come in pairs."""
        return padded(-(-self.n_neurons // BLOCK), 2)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the scales and minima that stay in memory."""
        n_numbers = self.n_blocks * padded(self.width, UNIT_ROWS)
        return 2 * n_numbers * (self.down.has_scales + self.down.has_minimum)

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
    """The layout of a layer with these formats; None where its neurons cannot be told apart to the bit.

    Such a layer is read whole: float up matrices, and down matrices that `columns.column_form` has nothing for.
    """
    panel, form = None if up is None else panel_for(up), column_form(down)
    if form is None or not (panel is None or isinstance(panel, IntegerPanel)):
        return None
    return NeuronLayout(width, n_neurons, panel, form)
