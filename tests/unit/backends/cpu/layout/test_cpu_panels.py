"""Every quant format goes into its panel without losing a bit, in about as many bytes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.books import BOOKS
from edgeinfer.backends.cpu.layout.panels import BLOCK, FloatPanel, IntegerPanel, pack_codes, panel_for
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import aligned
from edgeinfer.models.quants import FORMATS, BlockFormat, code_book, dequantise
from tests.unit.backends.cpu.book_reading import draw_entries
from tests.unit.backends.cpu.kernel_calls import same_bits
from tests.unit.backends.cpu.packing_calls import pack_rows, random_rows
from tests.unit.backends.cpu.panel_reading import (
    NUMBERS,
    Contents,
    read_contents,
    read_integers,
    read_values,
    write_contents,
)

KEYS = FORMATS.keys()
BLOCK_FORMATS = [form for form in FORMATS.entries().values() if isinstance(form, BlockFormat)]
BLOCK_KEYS = [form.name.lower() for form in BLOCK_FORMATS]
PANELS = {panel.key: panel for panel in map(panel_for, BLOCK_FORMATS) if isinstance(panel, IntegerPanel)}
MOST_EXTRA = 0.08
"""How much larger than in the file a matrix may be."""

BYTE_SETS = {
    "random": tuple(range(256)),
    "zeros": (0,),
    "ones": (255,),
    "tiny": (0, 1),
    "subnormal": (0, 1, 2, 128),
    "infinite": (0x00, 0x7C, 0xFC, 0x80),
    "unit": (0x00, 0x3C, 0xFF),
}
"""Bytes to draw from: zero, negative, subnormal, infinite and extreme scales, lowest and highest codes."""


def assert_same_values(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Equal bit for bit; a nan need only be one."""
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(actual), nan)
    assert np.array_equal(actual.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def columns_of(key: str, n_blocks: int) -> int:
    """Columns of a row of some blocks."""
    form = FORMATS.get(key)
    return n_blocks * form.block_size if isinstance(form, BlockFormat) else {1: 1, 2: 30, 3: 67}[n_blocks]


@pytest.mark.parametrize("drawn", BYTE_SETS)
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_formats_survive_packing(library: KernelLibrary, key: str, drawn: str) -> None:
    form, panel = FORMATS.get(key), panel_for(FORMATS.get(key))
    for n_blocks in (1, 2, 3):
        columns = columns_of(key, n_blocks)
        rows = random_rows(form, 32, columns, n_blocks, BYTE_SETS[drawn])
        data = pack_rows(library, form, rows, columns)
        assert_same_values(read_values(panel, data, columns), dequantise(rows, (32, columns), form.ggml_type))
        if isinstance(panel, IntegerPanel):
            assert isinstance(form, BlockFormat)
            assert np.array_equal(read_integers(panel, data, columns).codes, form.unpack(rows).codes)


@pytest.mark.parametrize("key", BLOCK_KEYS)
def test_nothing_but_the_numbers_is_written(library: KernelLibrary, key: str) -> None:
    """Blocks that are not there, and bytes between scales and codes, stay zero."""
    form, panel = FORMATS.get(key), panel_for(FORMATS.get(key))
    assert isinstance(panel, IntegerPanel)
    columns = columns_of(key, 3)
    data = pack_rows(library, form, random_rows(form, 16, columns), columns)
    held = read_contents(panel, data, columns)
    assert same_bits(write_contents(panel, held, np.zeros_like(data)), data)


@pytest.mark.parametrize("key", BLOCK_KEYS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_formats_without_a_layout_survive_unpacking(key: str) -> None:
    form = FORMATS.get(key)
    assert isinstance(form, BlockFormat)
    form = dataclasses.replace(form, layout=None)
    panel = panel_for(form)
    assert isinstance(panel, IntegerPanel)
    for n_blocks in (1, 3):
        columns = n_blocks * form.block_size
        codes = form.unpack(random_rows(form, 32, columns))
        data = aligned((2, panel.panel_bytes(columns)), np.uint8)
        pack_codes(panel, codes, data)
        held = read_integers(panel, data, columns)
        assert np.array_equal(held.codes, codes.codes)
        assert np.array_equal(held.scale, codes.scale, equal_nan=True)
        assert (held.minimum is None) == (codes.minimum is None)
        assert codes.minimum is None or np.array_equal(held.minimum, codes.minimum, equal_nan=True)


@pytest.mark.parametrize("key", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_both_ways_of_packing_give_the_same_bytes(library: KernelLibrary, key: str) -> None:
    form = FORMATS.get(key)
    assert isinstance(form, BlockFormat)
    panel = panel_for(form)
    assert panel == panel_for(dataclasses.replace(form, layout=None))
    assert isinstance(panel, IntegerPanel)
    rows = random_rows(form, 48, 160)
    rows[:, 1 :: form.block_bytes] &= 0x3F  # no infinities, whose conversion warns
    data = aligned((3, panel.panel_bytes(160)), np.uint8)
    with np.errstate(invalid="ignore"):
        pack_codes(panel, form.unpack(rows), data)
    assert same_bits(pack_rows(library, form, rows, 160), data)


@pytest.mark.parametrize("key", PANELS)
def test_numbers_of_a_panel_do_not_overlap(key: str) -> None:
    """What is written can be read again; this is about the description in panel_reading, which the others rely on."""
    panel = PANELS[key]
    columns, random = 2 * panel.record_columns, np.random.default_rng(0)
    contents = Contents.empty(panel, 32, columns)
    n_codes = len(panel.levels) or 1 << panel.code_bits
    contents.stored[:] = random.integers(0, n_codes, contents.stored.shape)
    draw_entries(contents.entries, panel, random)
    parts = [contents.scales, contents.units[0]]
    parts += [contents.minima, contents.units[1]] if panel.has_minimum else []
    for part in parts:
        top = 16 if panel.scales in ("u4", "odd") and part.itemsize == 1 else 100
        part[:] = random.integers(0, top, part.shape)
    data = write_contents(panel, contents, aligned((2, panel.panel_bytes(columns)), np.uint8))
    held = read_contents(panel, data, columns)
    for name in ("stored", "scales", "minima", "units"):
        assert np.array_equal(getattr(held, name), getattr(contents, name)), name
    for name in ("indices", "flags"):
        assert np.array_equal(getattr(held.entries, name), getattr(contents.entries, name)), name


@pytest.mark.parametrize("key", KEYS)
def test_panels_cost_what_the_file_does(key: str) -> None:
    form, columns = FORMATS.get(key), 2048
    in_file = 16 * columns // form.block_size * form.block_bytes
    assert in_file <= panel_for(form).panel_bytes(columns) <= (1 + MOST_EXTRA) * in_file


@pytest.mark.parametrize("key", KEYS)
def test_panels_are_aligned_and_hold_what_they_say(key: str) -> None:
    panel = panel_for(FORMATS.get(key))
    if isinstance(panel, FloatPanel):
        assert panel.panel_bytes(64) % 64 == 0
        return
    assert IntegerPanel.parse(panel.key) == panel
    assert NUMBERS.keys() | {"unit"} >= {panel.scales}
    assert panel.codes_at % 32 == 0
    assert panel.record_bytes % 32 == 0
    assert panel.panel_bytes(panel.record_columns + BLOCK) == 2 * panel.record_bytes
    assert panel.record_columns == 64 * panel.record_pairs


@pytest.mark.parametrize("key", PANELS)
def test_offsets_make_all_values_unsigned(key: str) -> None:
    panel = PANELS[key]
    assert panel.offset & (panel.offset - 1) == 0
    if panel.book in BOOKS:
        largest = int(np.abs(code_book(panel.book)).max())
        values = (-8 * largest - 1, 8 * largest + 1) if panel.book == "iq1_s" else (-largest, largest)
        assert max(values) == BOOKS[panel.book].largest
    else:
        values = panel.levels or (-panel.offset, (1 << panel.code_bits) - 1 - panel.offset)
    assert min(values) + panel.offset >= 0
    assert max(values) + panel.offset < 1 << panel.dot_bits
