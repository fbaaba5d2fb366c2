"""Panels number by number, as the layout is described: read back and written, independent of how packing does it.

In: what panels hold, column by column of all their rows. Out: their bytes, and back. Knows no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.panels import FloatPanel, IntegerPanel, Panel
from edgeinfer.models.quants import Codes
from tests.unit.backends.cpu.book_reading import WIDTHS, BookCodes, read_entries, read_trits, write_entries, write_trits

PLANES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
BYTES = ("e8m0", "e4m3", "e4m3f32", "u8", "u4", "odd")
NUMBERS = {"f16": np.float16, "f32": np.float32, "i8": np.int8, **dict.fromkeys(BYTES, np.uint8)}
UNITS = ("e4m3f32", "i8", "u8", "u4", "odd", "unit")


@dataclass(slots=True)
class Contents:
    """What the bytes of a panel hold, before it means anything.

    stored uint8[N, columns]; scales and minima [N, columns / group] of the type of NUMBERS ("u4": both are 0..15;
    "odd": 0..15; "unit": none); units float16 ("e4m3f32": float32) [2, N, columns / unit_columns], of scales and of
    minima (as stored: what is added).
    """

    stored: NDArray[np.uint8]
    scales: NDArray[np.generic]
    minima: NDArray[np.generic]
    units: NDArray[np.floating]
    entries: BookCodes
    columns: int

    @classmethod
    def empty(cls, panel: IntegerPanel, n_rows: int, columns: int) -> Contents:
        n_groups = 0 if panel.scales == "unit" else columns // panel.group
        scales = np.zeros((n_rows, n_groups), NUMBERS.get(panel.scales, np.uint8))
        units = np.zeros((2, n_rows, columns // panel.unit_columns), unit_kind(panel))
        stored = np.zeros((n_rows, 0 if panel.book in WIDTHS else columns), np.uint8)
        return cls(stored, scales, scales.copy(), units, BookCodes.empty(panel, n_rows, columns), columns)

    def codes(self, panel: IntegerPanel) -> Codes:
        """What it means, in the order of operations of `models.quants`."""
        if panel.book in WIDTHS:
            codes = self.entries.values(panel)
        elif panel.levels:
            codes = np.array(panel.levels, np.int8)[self.stored]
        else:
            codes = (self.stored.astype(np.int16) - panel.offset).astype(np.int8)
        if panel.scales == "e8m0":
            scale = np.ldexp(np.float32(1), self.scales.astype(np.int32) - 128)
        elif panel.scales in ("e4m3", "e4m3f32"):
            scale = np.array([half_float(int(byte)) for byte in range(256)], np.float32)[self.scales]
            if panel.scales == "e4m3f32":
                with np.errstate(all="ignore"):
                    scale = scale * np.repeat(self.units[0], panel.unit_columns // panel.group, axis=1)
        elif panel.scales == "unit":
            scale = np.repeat(self.units[0], panel.unit_columns // panel.group, axis=1).astype(np.float32)
        else:
            scale = self._multiplied(panel, 0, self.scales)
        return Codes(codes, scale, self._multiplied(panel, 1, self.minima) if panel.has_minimum else None)

    def _multiplied(self, panel: IntegerPanel, which: int, numbers: NDArray[np.generic]) -> NDArray[np.float32]:
        floats = numbers.astype(np.float32)
        if panel.scales == "odd":
            floats = (2 * floats + 1) / np.float32(1 << panel.halvings)
        if panel.scales in UNITS:
            floats *= np.repeat(self.units[which], panel.unit_columns // panel.group, axis=1).astype(np.float32)
        return floats


def half_float(byte: int) -> float:
    """Half of an unsigned e4m3: exponent bias 7, subnormal if the exponent is 0; 127 means zero, bit 7 nothing."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte == 127:
        return 0.0
    return 0.5 * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def unit_kind(panel: IntegerPanel) -> type[np.floating]:
    """The type of a panel's units."""
    return np.float32 if panel.scales == "e4m3f32" else np.float16


ROWS = np.arange(16)
"""Of a panel."""


def bits_of(panel: IntegerPanel, column: int) -> Iterator[tuple[NDArray[np.intp], int, int]]:
    """(bytes in the panel of its 16 rows, bit in the byte, width) of the parts of a column's codes, lowest first."""
    in_record = panel.unit_columns if panel.scales in UNITS else 64
    record, within = divmod(column, in_record)
    at = record * panel.record_bytes + panel.codes_at + within // 32 * panel.code_bytes
    four, byte = divmod(column % 32, 4)
    if panel.book:
        return
    for width in PLANES[panel.code_bits]:
        share = 8 // width
        yield at + four // share * 64 + ROWS * 4 + byte, width * (four % share), width
        at += 64 * width


def numbers_of(panel: IntegerPanel, group: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Bytes in the panel where a group's scales, its minima and its record's units begin, of its 16 rows."""
    size = 0 if panel.scales == "unit" else np.dtype(NUMBERS[panel.scales]).itemsize
    per_record = (panel.unit_columns if panel.scales in UNITS else 64) // panel.group
    record, within = divmod(group, per_record)
    record *= panel.record_bytes
    places = ((within // 2 if panel.scales == "odd" else within) * 16 + ROWS) * size
    return (
        record + panel.scales_at + places,
        record + panel.minima_at + places,
        record + ROWS * np.dtype(unit_kind(panel)).itemsize,
    )


def read_numbers(data: NDArray[np.uint8], places: NDArray[np.intp], kind: type[np.generic]) -> NDArray[np.generic]:
    """Numbers [panels, 16] that begin at bytes of each panel."""
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(data[:, places[:, None] + np.arange(size)]).view(kind)[..., 0]


def write_numbers(data: NDArray[np.uint8], places: NDArray[np.intp], numbers: NDArray[np.generic]) -> None:
    """Put numbers [panels, 16] where `read_numbers` finds them."""
    raw = np.ascontiguousarray(numbers)[..., None].view(np.uint8)
    data[:, places[:, None] + np.arange(raw.shape[-1])] = raw


def read_contents(panel: IntegerPanel, data: NDArray[np.uint8], columns: int) -> Contents:
    """All numbers of all rows."""
    held, kind = Contents.empty(panel, len(data) * 16, columns), NUMBERS.get(panel.scales)
    stored, scales, minima = (each.reshape(len(data), 16, -1) for each in (held.stored, held.scales, held.minima))
    units = held.units.reshape(2, len(data), 16, -1)
    held.entries = read_entries(panel, data, columns)
    if panel.book == "trits":
        held.stored[:] = read_trits(panel, data, columns)
    for column in range(stored.shape[-1]):
        low = 0
        for places, bit, width in bits_of(panel, column):
            stored[..., column] |= (data[:, places] >> bit & (1 << width) - 1) << low
            low += width
    for group in range(columns // panel.group):
        scale, minimum, unit = numbers_of(panel, group)
        if kind is not None:
            scales[..., group] = read_numbers(data, scale, kind)
        if panel.scales == "odd":
            scales[..., group] = data[:, scale] >> group % 2 * 4 & 15
        if panel.scales == "u4":
            minima[..., group] = data[:, scale] >> 4
            scales[..., group] = data[:, scale] & 15
        elif panel.has_minimum:
            minima[..., group] = read_numbers(data, minimum, kind)
        if panel.scales in UNITS:
            for which in range(1 + panel.has_minimum):
                units[which, ..., group * panel.group // panel.unit_columns] = read_numbers(
                    data, unit + 32 * which, unit_kind(panel)
                )
    return held


def write_contents(panel: IntegerPanel, contents: Contents, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Fill panels of zeros with the numbers; returns them."""
    columns, shape = contents.columns, (len(data), 16, -1)
    stored, scales, minima = (each.reshape(shape) for each in (contents.stored, contents.scales, contents.minima))
    units = contents.units.reshape(2, *shape)
    write_entries(panel, contents.entries, data)
    if panel.book == "trits":
        write_trits(panel, contents.stored, data)
    for column in range(stored.shape[-1]):
        low = 0
        for places, bit, width in bits_of(panel, column):
            data[:, places] |= (stored[..., column] >> low & (1 << width) - 1) << bit
            low += width
    for group in range(columns // panel.group):
        scale, minimum, unit = numbers_of(panel, group)
        if panel.scales == "odd":
            data[:, scale] |= scales[..., group] << group % 2 * 4
        elif panel.scales == "u4":
            data[:, scale] = scales[..., group] | minima[..., group] << 4
        elif panel.scales != "unit":
            write_numbers(data, scale, scales[..., group])
        if panel.scales != "u4" and panel.has_minimum:
            write_numbers(data, minimum, minima[..., group])
        if panel.scales in UNITS:
            for which in range(1 + panel.has_minimum):
                write_numbers(data, unit + 32 * which, units[which, ..., group * panel.group // panel.unit_columns])
    return data


def read_integers(panel: IntegerPanel, data: NDArray[np.uint8], columns: int) -> Codes:
    """Exact codes of all rows."""
    return read_contents(panel, data, columns).codes(panel)


def read_floats(panel: FloatPanel, data: NDArray[np.uint8], columns: int) -> NDArray[np.float32]:
    """Values of all rows: columns of 16 one after the other."""
    if panel.element == "bf16":
        numbers = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = data.view(np.float16 if panel.element == "f16" else np.float32).astype(np.float32)
    return numbers.reshape(len(data), -1, 16)[:, :columns].transpose(0, 2, 1).reshape(-1, columns)


def read_values(panel: Panel, data: NDArray[np.uint8], columns: int) -> NDArray[np.float32]:
    """float32[rows, columns] of any panel."""
    if isinstance(panel, FloatPanel):
        return read_floats(panel, data, columns)
    values = np.zeros((len(data) * 16, columns), np.float32)
    read_integers(panel, data, columns).write_values(values)
    return values
