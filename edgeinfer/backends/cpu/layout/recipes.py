"""Recipes: which bits of a quant format's blocks go where in a panel's records.

In: a format and its panel. Out: stores and terms for `kernels.weights.packing`, which moves the bits. Knows the two
layouts as data (`models.quants.BlockLayout`, `panels.IntegerPanel`), and no format by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
from edgeinfer.models.quants import BlockFormat, BlockLayout, FloatFormat, Number, Plane, QuantFormat

STORE = np.dtype([("at", "u4"), ("row_bytes", "u4"), ("flip", "u4"), ("n_terms", "u4")])
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
    """A number of `row_bytes` for each of 16 rows at byte `at` of a record: `flip` ^ its terms, which share no bits."""

    at: int
    row_bytes: int
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
    rows = [(store.at, store.row_bytes, store.flip, len(store.terms)) for store in stores]
    terms = [astuple(term) for store in stores for term in store.terms]
    all_stores, all_terms = np.array(rows, STORE), np.array(terms, TERM)
    places = (address(all_stores), len(rows), address(all_terms))
    return Recipe(source_bytes, record_bytes, all_stores, all_terms, places)


def float_recipe(form: FloatFormat, columns: int) -> Recipe:
    """The recipe for a run of columns of a float panel."""
    size = form.block_bytes
    stores = [
        RecordField(column * PANEL_ROWS * size, size, (Term(column * size, 0, ALL),)) for column in range(columns)
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
        stores += _shifted(_codes(form, layout, panel, block), start)
    return recipe(n_blocks * form.block_bytes, panel.record_bytes, stores)


def _shifted(stores: Iterator[RecordField], start: int) -> list[RecordField]:
    """Stores of a block that begins at byte `start`."""
    return [
        replace(store, terms=tuple(replace(term, byte=term.byte + start) for term in store.terms)) for store in stores
    ]


def _scales(form: BlockFormat, layout: BlockLayout, panel: IntegerPanel, block: int) -> Iterator[RecordField]:
    """Stores of the scales and minima of one block."""
    first = block * form.block_size // form.group * panel.scale_bytes
    if layout.multiples is None:
        keep = 0xFF if layout.unit == "e8m0" else 0xFFFF
        places = [
            (panel.scales_at, layout.scale),
            *([] if layout.minimum is None else [(panel.minima_at, layout.minimum)]),
        ]
        for region, byte in places:
            yield RecordField(region + first, panel.scale_bytes // PANEL_ROWS, (Term(byte, 0, keep),))
        return
    yield RecordField(0, 2, (Term(layout.scale, 0, 0xFFFF),))
    if layout.minimum is not None:  # negated, as it is subtracted
        yield RecordField(UNIT_BYTES, 2, (Term(layout.minimum, 0, 0xFFFF),), 0x8000)
    multiples = layout.multiples
    for group, number in enumerate(multiples.scales):
        at = panel.scales_at + first + group * panel.scale_bytes
        if panel.scales == "u4":
            yield RecordField(at, 1, (*_number(number), *_number(multiples.minima[group], up=4)))
            continue
        yield _less(RecordField(at, 1, _number(number)), multiples.offset)
        if multiples.minima:
            yield RecordField(panel.minima_at + first + group * panel.scale_bytes, 1, _number(multiples.minima[group]))


def _number(number: Number, up: int = 0) -> tuple[Term, ...]:
    """The pieces of a number, moved up."""
    return tuple(Term(piece.byte, piece.shift, (1 << piece.width) - 1, 1 << (piece.place + up)) for piece in number)


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
    return RecordField(store.at, store.row_bytes, tuple(low), above)


def _codes(form: BlockFormat, layout: BlockLayout, panel: IntegerPanel, block: int) -> Iterator[RecordField]:
    """Stores of the codes of one block: each run of 32 columns in turn, plane after plane."""
    assert tuple(plane.width for plane in layout.planes) == PLANES[panel.code_bits]
    n_runs = form.block_size // BLOCK
    for run in range(n_runs):
        at = panel.codes_at + (block * n_runs + run) * panel.code_bytes
        for plane in layout.planes:
            share = 8 // plane.width
            for vector in range(plane.width):
                terms = [_code_term(plane, run, vector * share + place, place * plane.width) for place in range(share)]
                yield RecordField(at, 4, tuple(terms), 0x80808080 if layout.signed else 0)
                at += 4 * PANEL_ROWS


def _code_term(plane: Plane, run: int, four: int, up: int) -> Term:
    """The plane's bits of columns 4 * four to 4 * four + 3, a byte each, moved up."""
    byte, bit = plane.runs[run]
    if plane.order == "bits":
        return Term(byte, bit + 4 * four, 0xF, SPREAD << up, EVERY_BYTE << up)
    keep = ((1 << plane.width) - 1) * EVERY_BYTE
    if plane.order == "bytes":
        return Term(byte + 4 * four, bit, keep, 1 << up)
    return Term(byte + 4 * (four % 4), bit + plane.width * (four // 4), keep, 1 << up)
