"""Recipes: which bits of a quant format's blocks go where in a panel's records.

In: a format and its panel. Out: stores and terms for `kernels.weights.packing`, which moves the bits. Knows the two
layouts as data (`models.quants.BlockLayout`, `panels.IntegerPanel`), and no format by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.books import BOOKS
from edgeinfer.backends.cpu.layout.panels import (
    BLOCK,
    PANEL_ROWS,
    PLANES,
    UNIT_BYTES,
    FloatPanel,
    IntegerPanel,
    panel_for,
)
from edgeinfer.jit.memory import address
from edgeinfer.models.quants import BlockFormat, BlockLayout, BookEntries, FloatFormat, Number, Plane, QuantFormat

STORE = np.dtype([("at", "u4"), ("row_bits", "u4"), ("flip", "u4"), ("n_terms", "u4")])
TERM = np.dtype([("byte", "u4"), ("shift", "u4"), ("keep", "u4"), ("factor", "u4"), ("mask", "u4")])
ALL = 0xFFFFFFFF
EVERY_BYTE = 0x01010101
SPREAD = 0x00204081
"""Factor for four bits: bit i is copied to bit 8 * i, among others."""
FLOAT_RECORD_COLUMNS = 32
SOURCE_BYTES = 256
"""Most bytes of a row for one record."""


@dataclass(frozen=True, slots=True)
class Term:
    """((32 bits at `byte` of a row's part of the record >> shift & keep) * factor) & mask."""

    byte: int
    shift: int
    keep: int
    factor: int = 1
    mask: int = ALL


@dataclass(frozen=True, slots=True)
class RecordField:
    """A number of `row_bits` (1, 8, 16, 32) for each of 16 rows at byte `at` of a record: `flip` ^ its terms."""

    at: int
    row_bits: int
    terms: tuple[Term, ...]
    flip: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a record of `record_bytes` from `source_bytes` of each of 16 rows; bytes without a store stay as is.

    `places`: address and number of the stores, address of the terms.
    """

    source_bytes: int
    record_bytes: int
    stores: NDArray[np.void]
    terms: NDArray[np.void]
    places: tuple[int, int, int]


class Recipes:
    """The recipes for rows of any format and length, each made once."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], Recipe] = {}

    def parts(self, form: QuantFormat, columns: int) -> list[tuple[int, Recipe]]:
        """Number of records and their recipe, for all full records, then for a last one with fewer columns.

        Empty for a format whose bit layout is unknown.
        """
        if isinstance(form, BlockFormat) and form.layout is None:
            return []
        panel = panel_for(form)
        per_record = FLOAT_RECORD_COLUMNS if isinstance(panel, FloatPanel) else panel.record_columns // form.block_size
        whole, rest = divmod(columns // form.block_size, per_record)
        sizes = [(whole, per_record)] * (whole > 0) + [(1, rest)] * (rest > 0)
        return [(count, self._recipe(form, n_blocks)) for count, n_blocks in sizes]

    def _recipe(self, form: QuantFormat, n_blocks: int) -> Recipe:
        key = (form.name, n_blocks)
        if key not in self._made:
            self._made[key] = (
                float_recipe(form, n_blocks) if isinstance(form, FloatFormat) else block_recipe(form, n_blocks)
            )
        return self._made[key]


def recipe(source_bytes: int, record_bytes: int, stores: list[RecordField]) -> Recipe:
    """Stores and terms as arrays."""
    assert source_bytes <= SOURCE_BYTES
    rows = [(store.at, store.row_bits, store.flip, len(store.terms)) for store in stores]
    terms = [astuple(term) for store in stores for term in store.terms]
    all_stores, all_terms = np.array(rows, STORE), np.array(terms, TERM)
    places = (address(all_stores), len(rows), address(all_terms))
    return Recipe(source_bytes, record_bytes, all_stores, all_terms, places)


def float_recipe(form: FloatFormat, columns: int) -> Recipe:
    """The recipe for a run of columns of a float panel."""
    size = form.block_bytes
    stores = [
        RecordField(column * PANEL_ROWS * size, 8 * size, (Term(column * size, 0, ALL),)) for column in range(columns)
    ]
    return recipe(columns * size, columns * PANEL_ROWS * size, stores)


def block_recipe(form: BlockFormat, n_blocks: int) -> Recipe:
    """The recipe for a record of an integer panel that holds the format's first `n_blocks` blocks."""
    panel, layout = panel_for(form), form.layout
    assert isinstance(panel, IntegerPanel)
    assert layout is not None
    stores: list[RecordField] = []
    for block in range(n_blocks):
        start = block * form.block_bytes
        stores += _shifted(_scales(form, layout, panel, block), start)
        codes = _codes(form, layout, panel, block) if layout.entries is None else _entries(layout.entries, panel)
        stores += _shifted(codes, start)
    return recipe(n_blocks * form.block_bytes, panel.record_bytes, stores)


def _shifted(stores: Iterator[RecordField], start: int) -> list[RecordField]:
    """Stores of a block that begins at byte `start`."""
    return [
        replace(store, terms=tuple(replace(term, byte=term.byte + start) for term in store.terms)) for store in stores
    ]


def _scales(form: BlockFormat, layout: BlockLayout, panel: IntegerPanel, block: int) -> Iterator[RecordField]:
    """Stores of the scales and minima of one block."""
    first = block * form.block_size // form.group * panel.scale_bytes
    if panel.scales == "unit":
        yield RecordField(0, 16, _unit(layout.scale))
        return
    if panel.scales in ("e4m3", "e4m3f32"):
        if layout.factor is not None:
            yield RecordField(0, 32, (Term(layout.factor, 0, ALL),))
        for group in range(form.block_size // form.group):
            assert isinstance(layout.scale, int)
            yield RecordField(panel.scales_at + first + group * PANEL_ROWS, 8, (Term(layout.scale + group, 0, 0xFF),))
        return
    if layout.multiples is None:
        keep = 0xFF if layout.unit == "e8m0" else 0xFFFF
        places = [
            (panel.scales_at, layout.scale),
            *([] if layout.minimum is None else [(panel.minima_at, layout.minimum)]),
        ]
        for region, byte in places:
            assert isinstance(byte, int)
            yield RecordField(region + first, 8 * panel.scale_bytes // PANEL_ROWS, (Term(byte, 0, keep),))
        return
    yield RecordField(0, 16, _unit(layout.scale))
    if layout.minimum is not None:  # negated, as it is subtracted
        yield RecordField(UNIT_BYTES, 16, (Term(layout.minimum, 0, 0xFFFF),), 0x8000)
    multiples = layout.multiples
    if panel.scales == "odd":
        for byte, (low, high) in enumerate(zip(multiples.scales[::2], multiples.scales[1::2], strict=True)):
            yield RecordField(panel.scales_at + byte * PANEL_ROWS, 8, (*_number(low), *_number(high, up=4)))
        return
    for group, number in enumerate(multiples.scales):
        at = panel.scales_at + first + group * panel.scale_bytes
        if panel.scales == "u4":
            yield RecordField(at, 8, (*_number(number), *_number(multiples.minima[group], up=4)))
            continue
        yield _less(RecordField(at, 8, _number(number)), multiples.offset)
        if multiples.minima:
            yield RecordField(panel.minima_at + first + group * panel.scale_bytes, 8, _number(multiples.minima[group]))


def _number(number: Number, up: int = 0) -> tuple[Term, ...]:
    """The pieces of a number, moved up."""
    return tuple(Term(piece.byte, piece.shift, (1 << piece.width) - 1, 1 << (piece.place + up)) for piece in number)


def _unit(scale: int | Number) -> tuple[Term, ...]:
    """A float16 at a byte, or in pieces."""
    return (Term(scale, 0, 0xFFFF),) if isinstance(scale, int) else _number(scale)


def _slice(number: Number, start: int, width: int) -> tuple[Term, ...]:
    """Bits `start` to `start + width - 1` of a number, moved down to bit 0."""
    terms = []
    for piece in number:
        low, high = max(piece.place, start), min(piece.place + piece.width, start + width)
        if low < high:
            keep = (1 << (high - low)) - 1
            terms.append(Term(piece.byte, piece.shift + low - piece.place, keep, 1 << (low - start)))
    return tuple(terms)


def _less(store: RecordField, offset: int) -> RecordField:
    """Subtract `offset`, the value of the highest bit, for a signed byte: flip that bit and all above it."""
    if offset == 0:
        return store
    *low, top = store.terms
    bits = top.keep.bit_length()
    assert top.factor << (bits - 1) == offset
    above = 0x100 - offset
    low.append(Term(top.byte, top.shift, top.keep >> 1, top.factor))
    low.append(Term(top.byte, top.shift + bits - 1, 1, above))
    return RecordField(store.at, store.row_bits, tuple(low), above)


def _codes(form: BlockFormat, layout: BlockLayout, panel: IntegerPanel, block: int) -> Iterator[RecordField]:
    """Stores of the codes of one block: each run of 32 columns in turn, plane after plane."""
    assert tuple(plane.width for plane in layout.planes) == PLANES[panel.code_bits]
    n_runs = form.block_size // BLOCK
    for run in range(n_runs):
        at = panel.codes_at + (block * n_runs + run) * panel.code_bytes
        for plane in layout.planes:
            share = 8 // plane.width
            for vector in range(plane.width):
                terms = [
                    term
                    for place in range(share)
                    for term in _code_terms(plane, run, vector * share + place, place * plane.width)
                ]
                yield RecordField(at, 32, tuple(terms), 0x80808080 if layout.signed else 0)
                at += 4 * PANEL_ROWS


def _entries(entries: BookEntries, panel: IntegerPanel) -> Iterator[RecordField]:
    """Stores of codes that are entries of a book: see `books`. The record is one block of the format."""
    book = BOOKS[entries.book]
    for number, index in enumerate(entries.indices):
        run, entry = divmod(number, book.entries)
        at = panel.codes_at + run * panel.code_bytes
        yield RecordField(at + entry * PANEL_ROWS, 8, _slice(index, 0, 8))
        for plane in range(book.high_bits):
            yield RecordField(at + book.high_at + 2 * (entry * book.high_bits + plane), 1, _slice(index, 8 + plane, 1))
        if entries.shifts:
            yield RecordField(at + book.signs_at + 2 * entry, 1, _slice(entries.shifts[number], 0, 1))
    for run in range(len(entries.signs) * 8 // BLOCK):
        terms = [
            term
            for eight, signs in enumerate(entries.signs[run * BLOCK // 8 : (run + 1) * BLOCK // 8])
            for term in _sign_terms(signs, 7 - 2 * eight)
        ]
        yield RecordField(panel.codes_at + run * panel.code_bytes + book.signs_at, 32, tuple(terms))


def _sign_terms(signs: Number, up: int) -> Iterator[Term]:
    """The signs of eight columns: those of the first four at bit `up` of a byte each, the others a bit lower."""
    for first, place in ((0, up), (4, up - 1)):
        for term in _slice(signs, first, 4):
            yield replace(term, factor=SPREAD << place, mask=EVERY_BYTE << place)
    if _width(signs) == 7:
        for bit in range(7):
            for term in _slice(signs, bit, 1):
                yield replace(term, factor=1 << 24 + up - 1)


def _width(number: Number) -> int:
    return sum(piece.width for piece in number)


def _code_terms(plane: Plane, run: int, four: int, up: int) -> Iterator[Term]:
    """The plane's bits of columns 4 * four to 4 * four + 3, a byte each, moved up."""
    byte, bit = plane.runs[run]
    if plane.order == "bits" and plane.width == 1:
        yield Term(byte, bit + 4 * four, 0xF, SPREAD << up, EVERY_BYTE << up)
    elif plane.order == "bits":  # two bits each: even and odd ones apart, so that no two copies overlap
        assert plane.width == 2
        yield Term(byte + four, bit, 0x33, 0x1001 << up, 0x00030003 << up)
        yield Term(byte + four, bit, 0xCC, 0x40040 << up, 0x03000300 << up)
    else:
        place, half = {
            "bytes": (4 * four, 0),
            "halves": (4 * (four % 4), four // 4),
            "eights": (8 * (four // 4) + 4 * (four % 2), four // 2 % 2),
        }[plane.order]
        yield Term(byte + place, bit + plane.width * half, ((1 << plane.width) - 1) * EVERY_BYTE, 1 << up)
