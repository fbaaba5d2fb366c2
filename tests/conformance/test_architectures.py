"""Every architecture of the registry has golden files, and its specs are consistent: buffers, weights, order of ops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import RopePermutation, Rows
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.causal_conv import CausalConv
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.gated_delta_net import GatedDeltaNet
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.router import Router
from edgeinfer.graph.ops.state_space import StateSpace
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.models.architectures import ARCHITECTURES, architecture_of
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.models.load import open_model

GOLDENS = Path(__file__).parents[1] / "golden" / "data"
FILES = sorted(GOLDENS.glob("*.gguf"))
CONVERTED = sorted((GOLDENS / "converted").glob("*.gguf"))
PEER = sorted((GOLDENS / "peer").glob("*.gguf"))
EMBEDDING = sorted((GOLDENS / "embedding").rglob("*.gguf"))


def check_buffers(spec: ModelSpec) -> None:
    """Every buffer exists once with the width each op gives it, is written before it is read, and is used."""
    buffers = {buffer.name: buffer for buffer in spec.buffers}
    assert len(buffers) == len(spec.buffers)
    places, holds = {buffer.name: buffer.place or buffer.name for buffer in spec.buffers}, dict[str, str]()
    written: set[str] = set()
    for op in spec.ops():
        reads, writes = op.accesses
        for name, width in (*reads, *writes):
            assert buffers[name].width == width, (op, name)
        assert {name for name, _ in reads} <= written, op
        assert all(holds[places[name]] == name for name, _ in reads), op
        holds |= {places[name]: name for name, _ in writes}
        kinds = {buffers[name].rows for name, _ in (*reads, *writes)}
        assert kinds == {Rows.TOKENS, Rows.OUTPUTS} if isinstance(op, TakeOutputs) else len(kinds) == 1, op
        written |= {name for name, _ in writes}
    assert written == buffers.keys()
    assert buffers[spec.logits].rows is Rows.OUTPUTS
    assert buffers[spec.logits].width == spec.output_width == (spec.n_vocab if spec.is_causal else spec.output_width)
    assert spec.logits in {name for name, _ in list(spec.ops())[-1].accesses[1]}


def check_layers(spec: ModelSpec) -> None:
    """Each layer stores keys and values, then attends, with what the spec says of its cache, or keeps a state.

    One that stores nothing attends to the cache of an earlier layer, no further than that reaches.
    """
    assert [stage.name for stage in spec.stages] == ["embed", *(f"blk.{i}" for i in range(spec.n_layers)), "head"]
    attending = [stage for stage in spec.stages if any(isinstance(op, Attention) for op in stage.ops)]
    convolving = [op for op in spec.ops() if isinstance(op, CausalConv)]
    recurring = [op for op in spec.ops() if isinstance(op, GatedDeltaNet)]
    scanning = [op for op in spec.ops() if isinstance(op, StateSpace)]
    idle = [stage for stage in spec.stages[1:-1] if not any(isinstance(op, Attention | CausalConv) for op in stage.ops)]
    beside = [stage for stage in attending if any(isinstance(op, CausalConv) for op in stage.ops)]
    mixing = [stage for stage in spec.stages if any(isinstance(op, CausalConv) for op in stage.ops)]
    assert len(attending) + len(mixing) + len(idle) - len(beside) == spec.n_layers
    shapes = {op.state: (op.taps - 1, op.width) for op in convolving}
    shapes |= {op.state: (op.value_heads, op.head_width, op.head_width) for op in recurring}
    shapes |= {op.state: (op.heads, op.state_width, op.head_width) for op in scanning}
    assert [shapes[number] for number in range(len(shapes))] == [state.shape for state in spec.states]
    n_stored = 0
    for stage in attending:
        (attend,) = [op for op in stage.ops if isinstance(op, Attention)]
        kept = spec.kv[attend.layer]
        sizes = kept.kv_heads, kept.key_width, kept.value_width
        for store in (op for op in stage.ops if isinstance(op, StoreKV)):
            assert stage.ops.index(store) < stage.ops.index(attend)
            assert store.layer == attend.layer == n_stored
            assert (store.kv_heads, store.key_width, store.value_width) == sizes
            assert attend.window == kept.window
            n_stored += 1
        assert attend.layer < n_stored
        assert (attend.kv_heads, attend.key_width, attend.value_width) == sizes
        assert kept.window is None or (attend.window is not None and attend.window <= kept.window)
        assert attend.heads % attend.kv_heads == 0
        assert all(op.table.rotary_width <= op.head_width for op in stage.ops if isinstance(op, Rope))
    assert n_stored == len(spec.kv)


def check_weights(tensors: Mapping[str, TensorInfo], spec: ModelSpec) -> None:
    """Weights lie within their tensors; matrices and vectors are where ops want them; row orders fit whole heads."""
    vectors = {weight for op in spec.ops() for weight in op.vectors}
    for weight in spec.weights():
        shape = tensors[weight.tensor].shape
        assert 0 <= weight.start < weight.stop <= math.prod(shape) // weight.columns
        assert weight.columns == (1 if weight in vectors else shape[-1])
        if isinstance(weight.order, RopePermutation):
            assert weight.n_rows % weight.order.head_width == 0
            assert weight.order.rotary_width <= weight.order.head_width
        elif weight.order is not None:
            assert weight.order.width < weight.order.step
    for op in spec.ops():
        if isinstance(op, MatMul) and op.bias is not None:
            assert (op.bias.n_rows, op.bias.order) == (op.weight.n_rows, op.weight.order)
        if isinstance(op, Experts):
            assert {len(matrices) for matrices in op.stacks} == {op.count}
            assert op.count >= op.active
            assert len(set(op.matrices)) == len(op.matrices)
            inner, outer = op.up[0], op.down[0]
            assert (inner.n_rows, inner.columns) == (outer.columns, outer.n_rows)
            assert {(each.n_rows, each.columns) for each in op.gate + op.up} == {(inner.n_rows, inner.columns)}
            assert {(each.n_rows, each.columns) for each in op.down} == {(outer.n_rows, outer.columns)}
            heights = [op.count * height for height in (inner.n_rows, inner.n_rows, outer.n_rows)]
            assert op.biases is None or [bias.n_rows for bias in op.biases] == heights
        if isinstance(op, Attention) and op.sinks is not None:
            assert op.sinks.n_rows == op.heads
        if isinstance(op, Attention) and op.relative is not None:
            assert op.relative.n_rows % op.heads == 0
        if isinstance(op, LayerNorm | RMSNorm):
            has_own = isinstance(op, LayerNorm) or op.own
            assert {vector.n_rows for vector in op.vectors} <= {op.width * (op.groups if has_own else 1)}
        if isinstance(op, Router):
            assert op.experts % op.groups == 0
            assert op.active <= op.experts // op.groups * op.active_groups
        if isinstance(op, Rope) and op.table.factors is not None:
            assert tensors[op.table.factors].shape == (op.table.rotary_width // 2,)


@pytest.mark.parametrize("path", [*FILES, *EMBEDDING, *CONVERTED], ids=lambda path: path.stem)
def test_specs_are_consistent(path: Path) -> None:
    with open_model(path) as model:
        check_buffers(model.spec)
        check_layers(model.spec)
        check_weights(model.file.tensors, model.spec)


@pytest.fixture(scope="module")
def formats() -> dict[str, set[str]]:
    """Types of tensors in the golden files of each value of `general.architecture`; all have their results beside."""
    found: dict[str, set[str]] = {}
    for path in [*FILES, *EMBEDDING, *CONVERTED, *PEER]:
        results = path.with_suffix(".npz"), path.with_name(f"{path.stem.rpartition('-')[0]}.npz")
        assert any(each.exists() for each in results) or list(GOLDENS.glob(f"{path.stem}@*.npz"))
        with GGUFFile.open(path) as file:
            types = {info.type_name for info in file.tensors.values()}
            found.setdefault(str(file.metadata["general.architecture"]), set()).update(types)
    return found


@pytest.mark.parametrize("key", ARCHITECTURES.keys())
def test_each_architecture_has_exact_goldens(key: str, formats: dict[str, set[str]]) -> None:
    own = ARCHITECTURES.get(key)
    kinds = set().union(*(types for name, types in formats.items() if architecture_of(name) is own))
    assert {"F32", "BF16"} & kinds


def test_each_order_of_rows_has_goldens_in_several_formats() -> None:
    found: dict[str, set[str]] = {}
    for path in FILES:
        with open_model(path) as model:
            products = [op.weight for op in model.spec.ops() if isinstance(op, MatMul)]
            stacks = [weight for op in model.spec.ops() if isinstance(op, Experts) for weight in op.matrices]
            for weight in (*products, *stacks):
                info = model.file.tensors[weight.tensor]
                if len(info.shape) == 1:  # a row: never quantised
                    continue
                order = "whole" if weight.order is None else type(weight.order).__name__
                part = "" if weight.stop - weight.start == math.prod(info.shape[:-1]) else " in part"
                found.setdefault(f"{order}, {len(info.shape)}-D{part}", set()).add(info.type_name)
    assert len(found) >= 5
    for order, kinds in found.items():
        assert {"F32", "Q8_0", "Q4_0"} <= kinds, order
        assert {"F16", "BF16"} & kinds, order
        assert any(kind.endswith("_K") for kind in kinds), order


@pytest.mark.parametrize("key", ARCHITECTURES.keys())
def test_aliases_name_one_architecture(key: str) -> None:
    entries = ARCHITECTURES.entries()
    for alias in entries[key].aliases:
        assert alias not in entries
        assert sum(alias in entry.aliases for entry in entries.values()) == 1
