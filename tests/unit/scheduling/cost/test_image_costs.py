"""What it costs to encode an image: its products, attention of all patches to all, tile by tile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.graph.ops.attention import Attention
from edgeinfer.models.projector_file import open_projector
from edgeinfer.scheduling.cost.images import EncoderWork
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.profile import AttentionRates, Curve, ProductRates
from tests.golden.goldens import DATA
from tests.unit.scheduling.profiles import device, machine

MADDS = 1e6
"""So few multiply-adds per second that nothing else counts."""
SLOW = machine(cpu=device(read=1e15, madds=MADDS))
PROJECTOR: Path = DATA / "vision" / "mmproj-idefics3.gguf"
PATCHES, WIDTH, FFN, LAYERS, ROWS, OUT = 16, 48, 96, 3, 4, 32
PATCH = 3 * 8 * 8


def test_a_tile_is_a_pass_of_all_its_patches_and_one_of_its_rows() -> None:
    layer = PATCHES * (4 * WIDTH * WIDTH + 2 * WIDTH * FFN) + 2 * WIDTH * PATCHES * PATCHES
    tile = PATCHES * PATCH * WIDTH + LAYERS * layer + ROWS * OUT * 4 * WIDTH
    with open_projector(PROJECTOR) as projector:
        work = EncoderWork.of(projector.encoder, projector.file.tensors)
        for size, n_tiles in (((32, 32), 17), ((32, 64), 9)):
            plan = projector.encoder.plan(size)
            assert len(plan.tiles) == n_tiles
            assert work.seconds(SLOW, plan) == pytest.approx(n_tiles * tile / MADDS, rel=1e-3)


def test_what_need_not_be_exact_has_rates_of_its_own() -> None:
    exact, high = (ProductRates(2.0, Curve.level(rate)) for rate in (1e9, 5e9))
    integers = ProductRates(1.0625, Curve.level(9e9))
    heads = AttentionRates(64, Curve.level(1e9)), AttentionRates(64, Curve.level(4e9), whole=True)
    rates = replace(device(), products={"F16": exact, "Q8_0": integers, "F16 high": high}, attention=heads)
    assert rates.product("F16", 2.0) is exact
    for form, size in (("F16 high", 2.0), ("BF16 high", 2.0), ("F32 high", 4.0)):
        assert rates.product(form, size) is high
    assert rates.product("Q8_0 high", 1.0625) is integers
    assert rates.product("Q4_0", 0.5625) is rates.product("Q4_0 high", 0.5625) is integers
    assert [rates.attention_rates(64, whole=whole) for whole in (False, True)] == list(heads)
    measured_before = replace(rates, products={"F16": exact, "Q8_0": integers}, attention=heads[:1])
    assert measured_before.product("F16 high", 2.0) is exact
    assert measured_before.attention_rates(64, whole=True) is heads[0]
    with open_projector(PROJECTOR) as projector:
        trunk = projector.encoder.trunk.with_precision("high")
        shapes = {each.shape for each in work_of(trunk, projector.file.tensors).stages if each.shape.attention}
    assert {product.form for shape in shapes for product in shape.products} == {"F32 high"}
    assert [shape.attention is not None and shape.attention.whole for shape in shapes] == [True, True]  # the last norms


@pytest.mark.parametrize("size", [(120, 200), (200, 120), (600, 90)])
def test_windows_are_counted_as_they_are_read(size: tuple[int, int]) -> None:
    """Of the layers of Qwen2.5-VL only some attend to all patches; the others to their windows, smaller at edges."""
    with open_projector(DATA / "vision" / "mmproj-qwen25vl.gguf") as projector:
        encoder = projector.encoder
        plan = encoder.plan(size)
        (tile,), (given,) = plan.tiles, encoder.tiles(np.zeros((*size, 3), np.uint8), plan)
        work = EncoderWork.of(encoder, projector.file.tensors)
        ops = [op for op in encoder.trunk.ops() if isinstance(op, Attention)]
        n_patches = tile.grid[0] * tile.grid[1]
        n_seen = {True: int((given.spans[:, 1] - given.spans[:, 0] + 1).sum()), False: n_patches**2}
        attended = sum(op.heads * (op.key_width + op.value_width) * n_seen[op.spans] for op in ops)
        assert n_seen[True] < n_seen[False]
        assert {op.spans for op in ops} == {True, False}
        products = n_patches * work.trunk.n_weights + tile.n_rows * work.projection.n_weights
        assert work.seconds(SLOW, plan) == pytest.approx((products + attended) / MADDS, rel=1e-3)
