"""Products and attention of numbers as sums of two bfloat16, against float64, and bit-equal whatever is beside them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import bfloats
from edgeinfer.backends.cpu.layout.padding import padded
from edgeinfer.backends.cpu.layout.panels import ELEMENTS, FloatPanel
from edgeinfer.backends.cpu.memory.step import StepRecord
from edgeinfer.graph.step import Step
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import aligned
from edgeinfer.models.quants import FORMATS
from tests.unit.backends.cpu.attention_calls import LONGEST, N_PAGES, Pages, Shape, chain, tables_of, tree
from tests.unit.backends.cpu.kernel_calls import UNTOUCHED, buffer, call, same_bits
from tests.unit.backends.cpu.kernels.test_cpu_matmul import ROWS, TILED, Product, new_out
from tests.unit.backends.cpu.packing_calls import pack_rows

pytestmark = pytest.mark.skipif(not TILED, reason="this CPU has no tile registers, or may not use them")

Floats = NDArray[np.float32]
ERROR = 2.0**-15
"""Of products, in parts of the sum of all magnitudes: the parts left out, and one rounding per block of columns."""
SEVERAL_CHUNKS = bfloats.MOST_BLOCKS * bfloats.COLUMNS * 2 + 70
SHAPES = (Shape(4, 4, 16), Shape(3, 3, 72), Shape(6, 2, 64), Shape(2, 2, 23, values=40), Shape(2, 1, 96, values=80))


def split_product(library: KernelLibrary, element: str, columns: int) -> tuple[Product, Floats]:
    """A random matrix, packed, and its exact values float32[ROWS, columns]."""
    values = np.random.default_rng(columns).standard_normal((ROWS, columns)).astype("f4")
    raw, exact = {
        "f32": (values.view("u4"), values),
        "f16": (values.astype("f2").view("u2"), values.astype("f2").astype("f4")),
        "bf16": ((values.view("u4") >> 16).astype("u2"), (values.view("u4") >> 16 << 16).view("f4")),
    }[element]
    rows = np.ascontiguousarray(raw).view(np.uint8).reshape(ROWS, -1)
    data = pack_rows(library, FORMATS.get(element), rows, columns)
    scratch = aligned((4, bfloats.PRODUCT_SCRATCH_BYTES), np.uint8)
    scratch[:] = 0xFF  # not-a-number wherever it is read before it is written
    fields = {"weights": data, "panel_bytes": data.shape[1], "n_rounds": -(-columns // 4)}
    fields |= {"scratch": scratch, "scratch_stride": scratch.strides[0]}
    kernel = catalogue.product_split(next(FloatPanel(each) for each in ELEMENTS if each == element), TILED[0])
    assert kernel is not None
    return Product(kernel, fields, exact.astype(np.float64)), exact


def assert_near(found: Floats, source: Floats, weights: Floats, extra: Floats | float = 0.0) -> None:
    """Within ERROR of source @ weights.T + extra."""
    exact, size = source.astype(np.float64), np.abs(source).astype(np.float64) @ np.abs(weights).T.astype(np.float64)
    assert np.all(np.abs(found - exact @ weights.T.astype(np.float64) - extra) <= ERROR * (size + np.abs(extra)))


@pytest.mark.parametrize("columns", [1, 4, 30, 48, 130, SEVERAL_CHUNKS])
@pytest.mark.parametrize("element", ELEMENTS)
def test_products(library: KernelLibrary, element: str, columns: int) -> None:
    product, weights = split_product(library, element, columns)
    draw, n_tokens = np.random.default_rng(columns), 77
    source = draw.standard_normal((n_tokens, columns)).astype("f4")
    source *= np.exp2(draw.integers(-20, 20, (n_tokens, 1))).astype("f4")
    out = new_out(n_tokens + 1)
    plain = product.run(library, source, out)
    assert np.all(out[n_tokens:] == UNTOUCHED)
    assert np.all(out[:, ROWS:] == UNTOUCHED)
    assert_near(plain, source, weights)
    for part in (1, 15, 16, 33, 64):
        assert same_bits(product.run(library, source[-part:], new_out(part), part % 4 + 1), plain[-part:])
    assert same_bits(product.run(library, source, new_out(n_tokens), 3), plain)


def test_products_are_added_to_what_is_there(library: KernelLibrary) -> None:
    product, weights = split_product(library, "f16", SEVERAL_CHUNKS)
    draw = np.random.default_rng(1)
    source, before = (draw.standard_normal((40, n)).astype("f4") for n in (SEVERAL_CHUNKS, ROWS))
    bias, out = draw.standard_normal(ROWS).astype("f4"), new_out(40)
    out[:40, :ROWS] = before
    added = product.run(library, source, out, 2, accumulate=1, bias=buffer(bias[None])[0], bias_stride=128)
    assert_near(added, source, weights, before + bias)


def test_many_tokens_are_multiplied_part_by_part(library: KernelLibrary) -> None:
    product, weights = split_product(library, "f16", 72)
    source = np.random.default_rng(2).standard_normal((2 * bfloats.MOST_TOKENS + 100, 72)).astype("f4")
    whole = product.run(library, source, new_out(len(source)))
    assert_near(whole, source, weights)
    assert same_bits(product.run(library, source, new_out(len(source)), 3), whole)


def attended(library: KernelLibrary, pages: Pages, step: Step, workers: int = 1) -> Floats:
    """float32[T, heads, value width] by the kernel."""
    shape, layout, n_tokens = pages.shape, pages.pool.layout, len(step.batch.tokens)
    record = StepRecord(Limits(LONGEST, N_PAGES, n_tokens, n_tokens), 8, ends=True)
    record.fill(step)
    query = aligned((n_tokens, shape.heads, padded(shape.width)), np.float32)
    query[..., : shape.width] = pages.queries(step)
    width = shape.heads * shape.value_width
    out = aligned((n_tokens + 1, width + 16), np.float32)
    out[:] = UNTOUCHED
    n_bytes = bfloats.attention_scratch_bytes(shape.width, shape.value_width, LONGEST)
    scratch = aligned((workers, padded(n_bytes, 64)), np.uint8)
    scratch[:] = 0xFF
    rows = {"query": query, "query_stride": query.strides[0], "out": out, "out_stride": out.strides[0]}
    rows |= {"scratch": scratch, "scratch_stride": scratch.shape[1]}
    kernel = catalogue.attend_whole(layout, TILED[0])
    assert kernel is not None
    call(library, kernel, workers, **rows, **pages.sizes(), full=1, step=record.record)
    assert np.all(out[n_tokens] == UNTOUCHED)
    assert np.all(out[:, width:] == UNTOUCHED)
    return out[:n_tokens, :width].reshape(n_tokens, shape.heads, -1).copy()


def seeing_all(pages: Pages, step: Step) -> NDArray[np.float64]:
    """What every token of a text would be given if it was the last one: plain softmax in float64."""
    queries, keys, values = (each.astype(np.float64) for each in pages.compared(step))
    out = np.zeros((len(queries), pages.shape.heads, pages.shape.value_width))
    for token, row in enumerate(step.rows):
        slots = step.context_slots(int(np.flatnonzero(step.rows == row)[-1]))
        for head in range(pages.shape.heads):
            group = head // pages.shape.repeats
            scores = keys[slots, group] @ queries[token, head]
            shares = np.exp(scores - scores.max())
            out[token, head] = shares @ values[slots, group] / shares.sum()
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("n_tokens", [1, 7, 32, 64, 65, 191])
def test_attention(library: KernelLibrary, shape: Shape, n_tokens: int) -> None:
    pages, step = Pages(library, shape), chain(0, n_tokens)
    pages.blank_others(step)
    found = attended(library, pages, step)
    assert np.allclose(found, seeing_all(pages, step), rtol=0, atol=2e-4)
    for workers in (2, 3):
        assert same_bits(attended(library, pages, step, workers), found)


def test_texts_of_one_pass_do_not_see_each_other(library: KernelLibrary) -> None:
    tables = tables_of(2)
    step = tree([0, 0], [list(range(-1, 69)), list(range(-1, 39))], tables)
    pages = Pages(library, SHAPES[1])
    pages.blank_others(step)
    found = attended(library, pages, step, 2)
    assert np.allclose(found, seeing_all(pages, step), rtol=0, atol=2e-4)
    assert same_bits(found[:70], attended(library, pages, chain(0, 70, tables[:1])))
