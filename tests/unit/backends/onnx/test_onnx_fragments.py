"""Models cut into fragments in every way the scheduler may ask for give the logits of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.models.load import Model, open_model
from tests.golden.goldens import Golden
from tests.unit.backends.onnx.onnx_parts import LIMITS, Floats, Parts, chain, part

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx.helper")

from edgeinfer.backends.onnx.device import OnnxDevice

NAMES = ("llama-f32", "llama-q8_0", "qwen3-f32", "gemma2-f32", "phi3-f32", "mistral-window-q8_0")
CUTS = ([10, 11, 40], [1, 2, 3])


@pytest.fixture
def device() -> OnnxDevice:
    return OnnxDevice(DeviceOptions(n_workers=2))


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden.read(request.param)


@pytest.fixture
def model(golden: Golden) -> Iterator[Model]:
    with open_model(golden.model, golden.n_context) as opened:
        yield opened


def tolerance(golden: Golden) -> float:
    return 1e-5 if golden.name.endswith("f32") else 1e-1


def played(parts: Parts, golden: Golden, cuts: list[int]) -> Floats:
    """Logits of all tokens: every fragment in turn, for each chunk."""
    logits, at = [], 0
    for chunk in np.split(golden.tokens, cuts):
        step, held = chain(chunk, at), {}
        for number in range(len(parts.lanes)):
            held |= parts.run(number, step, held)
        logits.append(held["logits"])
        at += len(chunk)
    parts.close()
    return np.concatenate(logits)


def split_at_attention(ops: list[Op]) -> list[list[Op]]:
    """Ops cut before and behind what touches the cache."""
    edges = [0]
    for place, op in enumerate(ops):
        if isinstance(op, StoreKV):
            edges.append(place)
        if isinstance(op, Attention):
            edges.append(place + 1)
    return [ops[first:stop] for first, stop in pairwise([*edges, len(ops)])]


def test_the_device_takes_fragments(device: OnnxDevice) -> None:
    assert device.capabilities.fragments is device


@pytest.mark.parametrize("cuts", CUTS)
def test_layer_ranges(device: OnnxDevice, golden: Golden, model: Model, cuts: list[int]) -> None:
    spec, stages = model.spec, model.spec.stages
    first, second, third = stages[:2], stages[2:-1], stages[-1:]
    ops = [[op for stage in some for op in stage.ops] for some in (first, second, third)]
    fragments = [
        part(spec, ops[0], (), ("x",)),
        part(spec, ops[1], ("x",), ("x",)),
        part(spec, ops[2], ("x",), ("logits",)),
    ]
    assert golden.error(played(Parts(device, model, fragments), golden, cuts)) < tolerance(golden)


@pytest.mark.parametrize("cuts", CUTS)
def test_attention_apart_from_products(device: OnnxDevice, golden: Golden, model: Model, cuts: list[int]) -> None:
    spec = model.spec
    fragments = []
    for ops in split_at_attention(list(spec.ops())):
        if isinstance(ops[0], StoreKV):
            fragments.append(part(spec, ops, ("query", "key", "value"), ("attended",)))
            continue
        inputs = () if not fragments else ("x", "attended")
        is_last = any(isinstance(op, TakeOutputs) for op in ops)
        fragments.append(part(spec, ops, inputs, ("logits",) if is_last else ("x", "query", "key", "value")))
    assert len(fragments) == 2 * spec.n_layers + 1
    assert golden.error(played(Parts(device, model, fragments), golden, cuts)) < tolerance(golden)


def rows_of(op: MatMul, first: int, stop: int) -> MatMul:
    """A product with some of its weight's rows."""
    start = op.weight.start
    weight = replace(op.weight, start=start + first, stop=start + stop)
    bias = None if op.bias is None else replace(op.bias, start=op.bias.start + first, stop=op.bias.start + stop)
    return replace(op, weight=weight, bias=bias)


@pytest.mark.parametrize("share", [0.25, 0.7])
def test_row_ranges_of_the_feed_forward_part(device: OnnxDevice, golden: Golden, model: Model, share: float) -> None:
    """Two lanes have some rows each of gate and up in the first layer; a third goes on with both."""
    spec, ops = model.spec, list(model.spec.ops())
    act = next(place for place, op in enumerate(ops) if isinstance(op, GatedAct))
    before, products, after = ops[: act - 2], ops[act - 2 : act], ops[act + 1 :]
    width = spec.ffn_width
    cut = int(width * share)
    halves = []
    for first, stop in ((0, cut), (cut, width)):
        chosen = [rows_of(op, first, stop) for op in products if isinstance(op, MatMul)]
        activated = replace(ops[act], width=stop - first)
        widths = {"gate": stop - first, "up": stop - first, "hidden": stop - first}
        halves.append(part(spec, [*chosen, activated], ("normed",), ("hidden",), **widths))
    parts = Parts(
        device,
        model,
        [part(spec, before, (), ("x", "normed")), *halves, part(spec, after, ("x", "hidden"), ("logits",))],
    )
    step = chain(golden.tokens, 0)
    held = parts.run(0, step, {})
    hidden = [parts.run(number, step, held)["hidden"] for number in (1, 2)]
    logits = parts.run(3, step, {**held, "hidden": np.concatenate(hidden, axis=1)})["logits"]
    parts.close()
    assert [rows.shape[1] for rows in hidden] == [cut, width - cut]
    assert golden.error(logits) < tolerance(golden)


def test_what_cannot_be_a_fragment_is_refused(device: OnnxDevice) -> None:
    with open_model(Golden.read("llama-f32").model, 128) as model:
        spec, ops = model.spec, list(model.spec.ops())
        store = next(place for place, op in enumerate(ops) if isinstance(op, StoreKV))
        for chosen, inputs, message in (
            (ops[store : store + 1], ("key", "value"), "no attention reads"),
            (ops[store + 1 : store + 2], ("query",), "no keys are stored"),
            ([Add("value", "key", 1)], (), "before anything is in it"),
        ):
            with pytest.raises(UnsupportedModel, match=message):
                device.compile_fragment(part(spec, chosen, inputs, ("attended",)), model.file, LIMITS)
