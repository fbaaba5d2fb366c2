"""Products of every panel on every instruction set against NumPy, and bit-equal whatever is beside a token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.books import BOOKS
from edgeinfer.backends.cpu.layout.panels import FloatPanel, IntegerPanel, panel_for, plain_panel
from edgeinfer.backends.cpu.layout.rounded import read_records
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import aligned
from edgeinfer.models.quants import FORMATS
from tests.unit.backends.cpu.book_reading import draw_entries, set_largest
from tests.unit.backends.cpu.kernel_calls import (
    RUNNABLE,
    UNTOUCHED,
    USABLE,
    buffer,
    call,
    count_of,
    quantised,
    same_bits,
)
from tests.unit.backends.cpu.packing_calls import pack_rows
from tests.unit.backends.cpu.panel_reading import Contents, write_contents

Floats = NDArray[np.float32]

PANELS = {panel_for(form).key: panel_for(form) for form in FORMATS.entries().values()}
INTEGERS = sorted(key for key, panel in PANELS.items() if isinstance(panel, IntegerPanel))
FLOATS = sorted(key for key, panel in PANELS.items() if isinstance(panel, FloatPanel))


def isas_of(key: str) -> tuple[str, ...]:
    """Instruction sets to test a panel with: all of them, unless another panel differs only in its scales or indices.

    Loading these is the same code on all of them, and each kernel takes seconds to compile.
    """

    def values(other: str) -> tuple[int, int, tuple[int, ...], str | tuple[int, bool]]:
        panel = IntegerPanel.parse(other)
        book = BOOKS.get(panel.book)
        entries = panel.book if book is None else (book.width, book.has_signs)
        return panel.code_bits, 0 if book else panel.group, panel.levels, entries

    first = next(other for other in INTEGERS if values(other) == values(key))
    return RUNNABLE if key == first else RUNNABLE[:1]


COMBINATIONS = [(key, isa) for key in INTEGERS for isa in isas_of(key)]
BY_ROOM = ("avx512vnni", "portable")
"""Instruction sets whose registers hold many vectors and few; code for both runs everywhere."""
TILED = [name for name in USABLE if name in catalogue.TILED]
ROWS = 96
MOST_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Product:
    """A packed matrix and its exact values float64[ROWS, columns]; with `tiles` that kernel does what it can first.

    `plain_bytes`: for two panels written out as bytes, where the kernel does that for several tokens.
    """

    kernel: Kernel
    fields: dict[str, NDArray[np.generic] | int]
    values: NDArray[np.float64]
    tiles: Kernel | None = None
    plain_bytes: int = 0

    def run(self, library: KernelLibrary, source: Floats, out: Floats, workers: int = 1, **fields: object) -> Floats:
        """out (+)= source @ values.T for the first rows of `out`, which may be wider and longer than that."""
        given = {**self.fields, **self._source(library, source), **fields}
        if self.tiles:
            scratch = aligned((workers, records.TILE_SCRATCH_BYTES), np.uint8)
            given |= {"tiled": 1, "unpacked": scratch, "unpacked_stride": scratch.strides[0]}
        given = {"bias": aligned((32,), np.float32), "bias_stride": 0, "block_tokens": 16, **given}
        given = {"n_units": ROWS // 32, **given}
        given |= {"out": out, "out_stride": out.strides[0], "count": count_of(len(source))}
        for kernel in [*([self.tiles] if self.tiles else []), self.kernel]:
            if kernel is self.kernel and self.plain_bytes:
                plain = aligned((workers, self.plain_bytes), np.uint8)
                given |= {"unpacked": plain, "unpacked_stride": plain.strides[0]}
            call(library, kernel, workers, **given)
        return out[: len(source), :ROWS].copy()

    def _source(self, library: KernelLibrary, source: Floats) -> dict[str, NDArray[np.generic] | int]:
        if self.kernel.arguments is records.PRODUCT:
            return {"activations": quantised(library, source, tiled=int(self.tiles is not None))}
        rows = buffer(source)
        return {"source": rows, "source_stride": rows.strides[0]}


def new_out(rows: int = MOST_TOKENS) -> Floats:
    """Rows of output with columns beside them, all untouched."""
    out: Floats = aligned((rows, ROWS + 32), np.float32)
    out[:] = UNTOUCHED
    return out


def integer_product(panel: IntegerPanel, isa: str, contents: Contents) -> Product:
    columns = contents.columns
    data = write_contents(panel, contents, aligned((ROWS // 16, panel.panel_bytes(columns)), np.uint8))
    codes = contents.codes(panel)
    values = codes.codes * np.repeat(codes.scale, panel.group, axis=1).astype(np.float64)
    if codes.minimum is not None:
        values += np.repeat(codes.minimum, panel.group, axis=1)
    fields = {"weights": data, "unit_bytes": 2 * data.shape[1], "second": data.shape[1]}
    fields |= {"n_records": panel.n_records(columns), "n_blocks": -(-columns // 64) * 2}
    plain_bytes = 2 * plain_panel(panel).panel_bytes(columns) if panel.book in BOOKS else 0
    return Product(catalogue.product(panel, isa), fields, values, catalogue.product_tiles(panel, isa), plain_bytes)


def columns_of(panel: IntegerPanel, n_blocks: int) -> int:
    """Columns of a row of some blocks, or records where scales have units."""
    return n_blocks * (panel.record_columns if panel.has_units else 32)


def n_codes(panel: IntegerPanel) -> int:
    """How many codes there are; of a book, whose entries are drawn apart, two: negative ones and others."""
    return len(panel.levels) or 1 << (panel.code_bits or 1)


def random_contents(panel: IntegerPanel, columns: int, seed: int) -> Contents:
    """Any codes with scales of both signs, some of them zero."""
    random = np.random.default_rng(seed)
    contents = Contents.empty(panel, ROWS, columns)
    contents.stored[:] = random.integers(0, n_codes(panel), contents.stored.shape)
    draw_entries(contents.entries, panel, random)
    integers = {"e8m0": (116, 126), "e4m3": (0, 100), "odd": (0, 16), "i8": (-128, 128), "u8": (0, 64), "u4": (0, 16)}
    for part, size in ((contents.scales, 0.02), (contents.minima, 0.3)):
        if panel.scales in integers:
            part[:] = random.integers(*integers[panel.scales], part.shape)
        else:
            part[:] = random.standard_normal(part.shape) * size * (random.random(part.shape) > 0.1)
    contents.units[:] = random.standard_normal(contents.units.shape) * 1e-3
    contents.units[random.random(contents.units.shape) < 0.1] = 0.0
    return contents


def even_contents(panel: IntegerPanel, columns: int) -> Contents:
    """Scales of 1, or of three eighths or so, and minima of 3."""
    contents = Contents.empty(panel, ROWS, columns)
    contents.scales[:] = {"e8m0": 128, "e4m3": 64}.get(panel.scales, 1)
    contents.minima[:] = 3
    contents.units[:] = 1
    return contents


def assert_close(actual: Floats, values: NDArray[np.float64], rounded: NDArray[np.float64], extra: Floats) -> None:
    """Within float32's chain error of rounded @ values.T + extra: one wrong code would cost a thousand times that."""
    expected = rounded @ values.T + extra
    size = np.abs(rounded) @ np.abs(values).T + np.abs(extra)
    assert np.all(np.abs(actual - expected) <= 1e-5 * size + 1e-30)


def rounded(library: KernelLibrary, source: Floats) -> NDArray[np.float64]:
    """What the int8 records of a source stand for."""
    n_blocks = source.shape[1] // 32
    held = read_records(quantised(library, source), len(source), n_blocks + n_blocks % 2)
    return held[:, : source.shape[1]].astype(np.float64)


@pytest.mark.parametrize("n_blocks", [1, 3, 10])
@pytest.mark.parametrize("key", INTEGERS)
def test_integer_products(library: KernelLibrary, key: str, n_blocks: int) -> None:
    panel = IntegerPanel.parse(key)
    assert panel == PANELS[key]
    columns = columns_of(panel, n_blocks)
    contents = random_contents(panel, columns, seed=columns)
    random = np.random.default_rng(columns + 1)
    source = (random.standard_normal((MOST_TOKENS, columns)) * random.uniform(0.01, 10, (MOST_TOKENS, 1))).astype("f4")
    bias, before = (random.standard_normal(shape).astype("f4") for shape in ((ROWS,), (MOST_TOKENS, ROWS)))
    results = []
    for isa in isas_of(key):
        matrix = integer_product(panel, isa, contents)
        out = new_out(MOST_TOKENS + 1)
        plain = matrix.run(library, source, out)
        assert np.all(out[MOST_TOKENS:] == UNTOUCHED)
        assert np.all(out[:, ROWS:] == UNTOUCHED)
        assert_close(plain, matrix.values, rounded(library, source), np.zeros_like(plain))
        out[:MOST_TOKENS, :ROWS] = before
        added = matrix.run(library, source, out, accumulate=1, bias=buffer(bias[None])[0], bias_stride=128)
        assert_close(added, matrix.values, rounded(library, source), before + bias)
        assert same_bits(added, (plain + bias) + before)
        results += [plain]
    assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize("key", INTEGERS)
def test_a_token_has_the_same_bits_in_any_batch_and_split(library: KernelLibrary, key: str) -> None:
    panel = IntegerPanel.parse(key)
    columns = columns_of(panel, 5)
    matrix = integer_product(panel, RUNNABLE[0], random_contents(panel, columns, seed=3))
    source = np.random.default_rng(4).standard_normal((MOST_TOKENS, columns)).astype("f4")
    alone = np.concatenate([matrix.run(library, source[i : i + 1], new_out()) for i in range(MOST_TOKENS)])
    for n_tokens in range(2, MOST_TOKENS + 1):
        start = MOST_TOKENS - n_tokens
        assert same_bits(matrix.run(library, source[start:], new_out(), workers=n_tokens % 5 + 1), alone[start:])


@pytest.mark.parametrize("isa", [RUNNABLE[0], *TILED])
@pytest.mark.parametrize("key", INTEGERS)
def test_many_tokens_have_the_bits_of_few(library: KernelLibrary, key: str, isa: str) -> None:
    """More than one run of unpacked columns; numbers of tokens that leave tiles of every size; gates and up rows."""
    panel = IntegerPanel.parse(key)
    columns = columns_of(panel, 5 if panel.has_units else 39)
    contents = random_contents(panel, columns, seed=7)
    plain, many = (integer_product(panel, each, contents) for each in (RUNNABLE[0], isa))
    stride = int(many.fields["unit_bytes"]) // 2
    gated = {"unit_bytes": stride, "second": 3 * stride, "n_units": 3, "curve": records.SILU}
    random = np.random.default_rng(8)
    source, before = (random.standard_normal((79, width)).astype("f4") for width in (columns, ROWS))
    for fields in ({}, {"accumulate": 1}, gated):
        few, out = new_out(len(source)), new_out(len(source) + 1)
        few[:, :ROWS] = before
        for first in range(0, len(source), MOST_TOKENS):
            plain.run(library, source[first : first + MOST_TOKENS], few[first:], **fields)
        for n_tokens, workers in ((47, 1), (48, 2), (64, 1), (79, 3)):
            out[:] = UNTOUCHED
            out[:n_tokens, :ROWS] = before[:n_tokens]
            many.run(library, source[:n_tokens], out, workers, **fields)
            assert same_bits(out[:n_tokens], few[:n_tokens])
            assert np.all(out[n_tokens:] == UNTOUCHED)


@pytest.mark.parametrize(("key", "isa"), COMBINATIONS)
def test_extreme_codes_do_not_saturate(library: KernelLibrary, key: str, isa: str) -> None:
    """With scales of 1 every sum is an integer below 2^24, so the result is exact."""
    panel = IntegerPanel.parse(key)
    columns = columns_of(panel, 1 if panel.has_units else 3)
    patterns = [np.full(columns, 127.0), np.full(columns, -127.0), np.where(np.arange(columns) % 2, 127.0, -127.0)]
    patterns += [np.where(np.arange(columns) % 32 < 16, 127.0, -127.0), np.eye(columns)[7] * 127.0, np.zeros(columns)]
    source = np.array(patterns, np.float32)
    top = n_codes(panel) - 1
    contents = even_contents(panel, columns)
    for stored in (0, 1, top // 2, top // 2 + 1, top):
        contents.stored[:] = stored
        contents.stored[1::2, 1::2] = top - stored
        set_largest(contents.entries, panel, negative=stored % 2 == 1)
        matrix = integer_product(panel, isa, contents)
        assert np.array_equal(matrix.run(library, source, new_out()), source @ matrix.values.T)
        for tiled in TILED:
            matrix, many = integer_product(panel, tiled, contents), np.tile(source, (8, 1))
            assert np.array_equal(matrix.run(library, many, new_out(len(many))), many @ matrix.values.T)


@pytest.mark.parametrize("exponent", [0, 1, 2, 255])
@pytest.mark.parametrize("key", [key for key in INTEGERS if PANELS[key].scales == "e8m0"])
def test_the_smallest_and_the_largest_power_of_two(library: KernelLibrary, key: str, exponent: int) -> None:
    """Scales that float32 holds as subnormal numbers, the first that is not, and one that looks like infinity."""
    panel = IntegerPanel.parse(key)
    contents = random_contents(panel, 64, seed=exponent)
    contents.scales[:] = exponent
    size = 1e-20 if exponent == 255 else 1e20
    source = (np.random.default_rng(exponent).standard_normal((3, 64)) * size).astype("f4")
    for isa in isas_of(key):
        matrix = integer_product(panel, isa, contents)
        plain = matrix.run(library, source, new_out())
        assert np.all(np.isfinite(plain))
        assert_close(plain, matrix.values, rounded(library, source), np.zeros_like(plain))


@pytest.mark.parametrize("columns", [1, 4, 30, 48, 130])
@pytest.mark.parametrize("key", FLOATS)
def test_float_products(library: KernelLibrary, key: str, columns: int) -> None:
    random = np.random.default_rng(columns)
    values = random.standard_normal((ROWS, columns)).astype("f4")
    raw = {
        "f32": values.view("u4"),
        "f16": values.astype("f2").view("u2"),
        "bf16": (values.view("u4") >> 16).astype("u2"),
    }
    exact = {"f32": values, "f16": values.astype("f2"), "bf16": (values.view("u4") >> 16 << 16).view("f4")}[key]
    panel = PANELS[key]
    assert isinstance(panel, FloatPanel)
    rows = np.ascontiguousarray(raw[key]).view(np.uint8).reshape(ROWS, -1)
    data = pack_rows(library, FORMATS.get(key), rows, columns)
    fields = {"weights": data, "panel_bytes": data.shape[1], "n_rounds": -(-columns // 4)}
    wide, narrow = (Product(catalogue.product_float(panel, isa), fields, exact.astype(np.float64)) for isa in BY_ROOM)
    matrix = wide
    source = random.standard_normal((MOST_TOKENS, columns)).astype("f4")
    bias, before = (random.standard_normal(shape).astype("f4") for shape in ((ROWS,), (MOST_TOKENS, ROWS)))
    out = new_out(MOST_TOKENS + 1)
    plain = matrix.run(library, source, out)
    assert np.all(out[MOST_TOKENS:] == UNTOUCHED)
    assert np.all(out[:, ROWS:] == UNTOUCHED)
    assert_close(plain, matrix.values, source.astype(np.float64), np.zeros_like(plain))
    out[:MOST_TOKENS, :ROWS] = before
    added = matrix.run(library, source, out, accumulate=1, bias=buffer(bias[None])[0], bias_stride=128)
    assert same_bits(added, (plain + bias) + before)
    for n_tokens in range(1, MOST_TOKENS):
        assert same_bits(matrix.run(library, source[:n_tokens], new_out(), n_tokens % 4 + 1), plain[:n_tokens])
        assert same_bits(narrow.run(library, source[:n_tokens], new_out(), n_tokens % 4 + 1), plain[:n_tokens])
    room = aligned((4, 2 * FloatPanel("f32").panel_bytes(columns)), np.uint8)
    converted = {"scratch": room, "scratch_stride": room.strides[0]}
    for n_tokens in (47, 48, 61):
        many, expected = (np.resize(rows, (n_tokens, rows.shape[1])) for rows in (source, plain))
        for product in (wide, narrow):
            for given in ({}, converted):
                found = product.run(library, many, new_out(n_tokens), n_tokens % 4 + 1, **given)
                assert same_bits(found, expected)
