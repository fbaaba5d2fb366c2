"""Codes of panels that are entries of a code book, number by number, as `layout.books` describes them.

In: panels, or indices with signs or shifts. Out: the other. Knows no kernel and no scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.panels import IntegerPanel
from edgeinfer.models.quants import code_book

Bytes = NDArray[np.uint8]
WIDTHS = {"iq1_s": 8, "iq2_xxs": 8, "iq2_xs": 8, "iq2_s": 8, "iq3_xxs": 4, "iq3_s": 4}


@dataclass(slots=True)
class BookCodes:
    """indices uint16[N, columns / width]; flags uint8[N, columns] of signs, or [N, columns / 8] of shifts."""

    indices: NDArray[np.uint16]
    flags: Bytes

    @classmethod
    def empty(cls, panel: IntegerPanel, n_rows: int, columns: int) -> BookCodes:
        if panel.book not in WIDTHS:
            return cls(np.zeros((n_rows, 0), np.uint16), np.zeros((n_rows, 0), np.uint8))
        n_flags = columns // 8 if panel.book == "iq1_s" else columns
        return cls(np.zeros((n_rows, columns // WIDTHS[panel.book]), np.uint16), np.zeros((n_rows, n_flags), np.uint8))

    def values(self, panel: IntegerPanel) -> NDArray[np.int8]:
        """int8[N, columns]."""
        codes = code_book(panel.book)[self.indices].reshape(len(self.indices), -1)
        if panel.book == "iq1_s":
            return 8 * codes + 1 - 2 * np.repeat(self.flags, 8, axis=1).astype(np.int8)
        return np.where(self.flags, -codes, codes).astype(np.int8)


def _blocks(panel: IntegerPanel, columns: int) -> Iterator[tuple[int, int]]:
    """(number, byte in the panel) of every block of 32 columns."""
    for block in range(columns // 32):
        record, within = divmod(block, 8)
        yield block, record * panel.record_bytes + panel.codes_at + within * panel.code_bytes


def _fields(panel: IntegerPanel, columns: int) -> Iterator[tuple[str, int, int, int, int, int]]:
    """(array, its column, bit of the number, byte in the panel, bits of a row there, row's bits before it)."""
    per_block = 32 // WIDTHS[panel.book]
    highest = len(code_book(panel.book)).bit_length() - 1
    for block, at in _blocks(panel, columns):
        for entry in range(per_block):
            for bit in range(8):
                yield "indices", block * per_block + entry, bit, at + 16 * entry, 8, bit
            for plane in range(highest - 8):
                place = at + 16 * per_block + 2 * (entry * (highest - 8) + plane)
                yield "indices", block * per_block + entry, 8 + plane, place, 1, 0
        signs_at = at + 16 * per_block + 2 * (highest - 8) * per_block
        if panel.book == "iq1_s":
            for eight in range(4):
                yield "flags", block * 4 + eight, 0, signs_at + 2 * eight, 1, 0
        else:
            for column in range(32):
                yield "flags", block * 32 + column, 0, signs_at, 32, column % 4 * 8 + 7 - column // 4


def read_entries(panel: IntegerPanel, data: Bytes, columns: int) -> BookCodes:
    """Everything the panels hold."""
    held = BookCodes.empty(panel, len(data) * 16, columns)
    for name, column, bit, at, per_row, before in _fields(panel, columns) if panel.book in WIDTHS else ():
        bits = np.arange(16) * per_row + before
        values = data[:, at + bits // 8] >> (bits % 8) & 1
        getattr(held, name)[:, column] |= values.reshape(-1).astype(np.uint16) << bit
    return held


def write_entries(panel: IntegerPanel, held: BookCodes, data: Bytes) -> None:
    """Fill panels of zeros."""
    columns = held.indices.shape[1] * WIDTHS.get(panel.book, 0)
    for name, column, bit, at, per_row, before in _fields(panel, columns) if panel.book in WIDTHS else ():
        values = (getattr(held, name)[:, column].reshape(-1, 16) >> bit & 1).astype(np.uint8)
        for row in range(16):
            place = row * per_row + before
            data[:, at + place // 8] |= values[:, row] << (place % 8)


def draw_entries(held: BookCodes, panel: IntegerPanel, random: np.random.Generator) -> None:
    """Random entries and signs or shifts, in place."""
    if panel.book in WIDTHS:
        held.indices[:] = random.integers(0, len(code_book(panel.book)), held.indices.shape)
        held.flags[:] = random.integers(0, 2, held.flags.shape)


def _digits(panel: IntegerPanel, columns: int) -> Iterator[tuple[int, int, int]]:
    """(column, byte of the first row in the panel, digit in the byte, or -1 - its bit where a digit is two bits)."""
    for column in range(columns):
        record, within = divmod(column, 256)
        pair, four, byte = within // 64, within % 64 // 4, within % 4
        at = record * panel.record_bytes + panel.codes_at + byte
        if four < 15:
            yield column, at + pair * 192 + four // 5 * 64, four % 5
        else:
            yield column, at + 768, -1 - 2 * pair


def read_trits(panel: IntegerPanel, data: Bytes, columns: int) -> Bytes:
    """Digits 0, 1, 2 of ternary codes: uint8[N, columns]."""
    digits = np.zeros((len(data), 16, columns), np.uint8)
    for column, at, digit in _digits(panel, columns):
        held = data[:, at + 4 * np.arange(16)].astype(np.uint32)
        digits[..., column] = held >> (-1 - digit) & 3 if digit < 0 else (held * 3**digit & 255) * 3 >> 8
    return digits.reshape(-1, columns)


def write_trits(panel: IntegerPanel, digits: Bytes, data: Bytes) -> None:
    """Fill panels of zeros."""
    rows = digits.reshape(len(data), 16, -1).astype(np.uint32)
    numbers: dict[int, NDArray[np.uint32]] = {}
    for column, at, digit in _digits(panel, digits.shape[1]):
        if digit < 0:
            data[:, at + 4 * np.arange(16)] |= (rows[..., column] << (-1 - digit)).astype(np.uint8)
        else:
            numbers[at] = numbers.get(at, 0) + rows[..., column] * 3 ** (4 - digit)
    for at, number in numbers.items():
        data[:, at + 4 * np.arange(16)] = (number * 256 + 242) // 243


def set_largest(held: BookCodes, panel: IntegerPanel, negative: bool) -> None:
    """The largest entry everywhere, in place: all negative or none, but the other way at odd rows and columns."""
    if panel.book in WIDTHS:
        sums = code_book(panel.book).sum(axis=1)
        held.indices[:] = sums.argmin() if negative and panel.book == "iq1_s" else sums.argmax()
        held.flags[:] = negative
        held.flags[1::2, 1::2] = not negative
