"""Gemma 4: what its files must have, whose keys and values layers use, and rows that are given in place of tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lowering.needs import DEVICE_OPS
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.operands import PagedKV
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.gated_columns import GatedColumns
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.graph.step import Batch, Floats, InputRows, Step
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import open_model, spec_of
from edgeinfer.models.variants import with_threshold
from tests.golden.goldens import DATA, distance
from tests.unit.models.headers import keyed

SMALL = DATA / "gemma4-small-f32.gguf"
WINDOW = 12


def test_the_last_layers_attend_to_the_last_one_of_their_kind() -> None:
    with open_model(SMALL) as model:
        spec = model.spec
    found = [op for op in spec.ops() if isinstance(op, Attention)]
    assert [(op.layer, op.window, op.key_width, op.scale) for op in found] == [
        *((0, WINDOW, 16, 1.0), (1, None, 32, 1.0)),
        *((0, WINDOW, 16, 1.0), (0, WINDOW, 16, 1.0), (1, None, 32, 1.0)),
    ]
    assert spec.kv == (PagedKV(2, 16, 16, WINDOW), PagedKV(2, 32, 32))
    assert spec.why_whole == "looks up tokens for each layer"


def test_values_are_the_product_of_keys_where_the_file_has_no_other() -> None:
    with open_model(DATA / "gemma4-f32.gguf") as model:
        stages = model.spec.stages[1:-1]
        products = [[op.weight.tensor for op in stage.ops if isinstance(op, MatMul)] for stage in stages]
    assert ["blk.0.attn_v.weight" in products[0], "blk.1.attn_v.weight" in products[1]] == [True, False]
    assert [kept.key_width for kept in model.spec.kv] == [16, 32, 16, 32]


def test_thresholds_leave_the_inputs_of_layers_alone() -> None:
    with open_model(SMALL) as model:
        cut = with_threshold(model.spec, 0.1)
    assert all(op.threshold == 0.1 for op in cut.ops() if isinstance(op, GatedAct))
    assert [op for op in cut.ops() if isinstance(op, GatedColumns)] == [
        op for op in model.spec.ops() if isinstance(op, GatedColumns)
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.sliding_window_pattern", None, "no array gemma4.attention.sliding_window_pattern"),
        ("attention.sliding_window_pattern", [True] * 4, "has 4 entries for 5 layers"),
        ("attention.shared_kv_layers", 5, "must be between 0 and 4"),
        ("attention.shared_kv_layers", 4, "layer 1 has no keys and values, nor an earlier layer of its kind"),
        ("attention.key_length_swa", 8, "rope.dimension_count_swa is 16: not even, or above 8"),
        ("embedding_length_per_layer_input", 16, "per_layer_token_embd.weight has shape"),
        ("embedding_length_per_layer_input", 0, "does not use"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, key: str, value: object, message: str) -> None:
    with GGUFFile.open(SMALL) as file:
        own = {name: held for name, held in file.metadata.items() if name.startswith("gemma4.")}
        values: dict[str, object] = {
            name: held.tolist() if isinstance(held, np.ndarray) else held for name, held in own.items()
        }
        with pytest.raises((BadGGUF, UnsupportedModel), match=message):
            spec_of(keyed(tmp_path, "gemma4", values | {f"gemma4.{key}": value}), file.tensors)


def test_a_row_in_place_of_a_token_gets_the_inputs_of_token_zero() -> None:
    """As llama.cpp has it: token 0 is padding."""
    given = 2.0 * np.random.default_rng(1).standard_normal((1, 32)).astype(np.float32)
    places, parents = np.arange(3, dtype=np.int32), np.array([-1, 0, 1], np.int32)
    zeros = np.zeros(3, np.int32)
    batch = Batch(np.array([5, -1, 9], np.int32), zeros, places, parents, places, InputRows(given))
    step = Step(batch, zeros, places, zeros, np.full((1, 4), -1, np.int32))
    with open_model(SMALL, rows=True) as model:
        logits, inputs = [], []
        for device in (ReferenceDevice(), CpuDevice(DeviceOptions(n_workers=2))):
            lane = device.compile(model.spec, model.file, Limits(256, 4, 8, 8))
            logits.append(lane.run(step).copy())
            inputs.append(lane.value("layer_inputs").copy())
            lane.close()
        table = model.file.raw("per_layer_token_embd.weight").view(np.float32).reshape(264, -1).copy()
    assert distance(logits[1], logits[0]) < 5e-3
    assert distance(inputs[1], inputs[0]) < 1e-5
    parts = inputs[1].reshape(3, 5, -1) * 2.0**0.5 - table[[5, 0, 9]].reshape(3, 5, -1) * 32**0.5
    squares = (parts / vector_of("per_layer_proj_norm.weight")) ** 2
    np.testing.assert_allclose(squares.mean(axis=-1), 1.0, rtol=0.2)  # what is left are normed projections


def vector_of(name: str) -> Floats:
    with GGUFFile.open(SMALL) as file:
        return file.raw(name).view(np.float32).copy()


def test_the_cpu_refuses_columns_that_would_bring_others_along() -> None:
    with open_model(SMALL) as model:
        op = next(op for op in model.spec.ops() if isinstance(op, GatedColumns))
    DEVICE_OPS.check([op])
    for changed in (replace(op, first=16), replace(op, width=16)):
        with pytest.raises(UnsupportedModel, match="gated_columns: it takes multiples of 32 columns"):
            DEVICE_OPS.check([changed])


def test_only_rows_of_the_table_are_read() -> None:
    """Its numbers are not counted as weights in memory, but as rows that are looked up."""
    with open_model(SMALL) as model:
        (op,) = [op for op in model.spec.ops() if isinstance(op, TokenRows)]
        assert op.cost.gathered == (op.weight,)
        assert not op.cost.products
