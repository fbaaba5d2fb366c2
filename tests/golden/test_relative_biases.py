"""T5's biases of distances: the buckets of transformers, texts longer than their reach, bits, and mistakes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.attention import FARTHEST, Attention, buckets
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.models.architectures import architecture_of
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.load import open_model
from tests.golden.goldens import DATA, distance
from tests.golden.test_architecture_logits import change, edited
from tests.golden.test_embedding_goldens import hidden
from tests.unit.backends.cpu.kernel_calls import DISTINCT

FOLDER = DATA / "converted"
NAMES = ("t5encoder", "t5encoder-gated")
LIMITS = Limits(256, 8, max_tokens=256, max_outputs=16)
STARTS = {
    (32, False): (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91),
    (16, False): (0, 1, 2, 3, 4, 10, 23, 54),
    (32, True): (*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113),
}
"""Where each bucket of earlier keys starts, as `T5Attention._relative_position_bucket` of transformers 5.24 has it."""


@pytest.mark.parametrize(("n_buckets", "causal"), STARTS)
def test_buckets_are_those_of_transformers(n_buckets: int, causal: bool) -> None:
    starts = STARTS[n_buckets, causal]
    away = np.arange(300)
    expected = np.searchsorted(starts, away, side="right") - 1
    assert np.array_equal(buckets(-away, n_buckets, causal=causal), expected)
    later = np.zeros_like(away) if causal else expected + np.where(away > 0, n_buckets // 2, 0)
    assert np.array_equal(buckets(away, n_buckets, causal=causal), later)
    assert starts[-1] < FARTHEST


def texts(name: str) -> tuple[Path, list[np.ndarray]]:
    with np.load(FOLDER / f"{name}.npz") as held:
        tokens = held["tokens"]
    assert len(tokens) > FARTHEST + 16
    return FOLDER / f"{name}-bf16.gguf", [tokens]


@pytest.mark.parametrize("name", NAMES)
def test_texts_workers_and_instruction_sets_do_not_change_bits(name: str) -> None:
    path, (tokens,) = texts(name)
    parts = [tokens[:150], tokens[150:153], tokens[153:]]
    devices = [CpuDevice(DeviceOptions(n_workers=2), isa) for isa in DISTINCT]
    together = [hidden(device, path, parts, limits=LIMITS) for device in devices]
    other = CpuDevice(DeviceOptions(n_workers=3))
    together.append(np.concatenate([hidden(other, path, [part], limits=LIMITS) for part in parts]))
    assert {each.tobytes() for each in together} == {together[0].tobytes()}


def biases_of_the_first(op: Op) -> Op:
    """The first layer's biases in all layers."""
    if not isinstance(op, Attention) or op.relative is None:
        return op
    return replace(op, relative=replace(op.relative, tensor="enc.blk.0.attn_rel_b.weight"))


MISTAKES: dict[str, tuple[str, Callable[[Op], Op | None]]] = {
    "distances do not matter": ("t5encoder", change(Attention, relative=None)),
    "causal": ("t5encoder", change(Attention, causal=True)),
    "scaled scores": ("t5encoder", change(Attention, scale=0.25)),
    "GELU": ("t5encoder", change(Act, activation="gelu_tanh")),
    "the first layer's biases": ("t5encoder-gated", biases_of_the_first),
    "ReLU": ("t5encoder-gated", change(GatedAct, activation="relu")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_goldens_see_every_feature(mistake: str) -> None:
    name, edit = MISTAKES[mistake]
    path, parts = texts(name)
    with open_model(path) as model:
        specs = model.spec, edited(model.spec, edit)
    exact, other = (hidden("reference", path, parts, spec, LIMITS) for spec in specs)
    assert distance(other, exact) > 1e-2


@pytest.mark.parametrize("key", ["onnx", "openvino", "cuda"])
def test_other_devices_refuse_the_field(key: str) -> None:
    op = Attention("query", "attended", 0, 4, 4, 16, 16, 1.0)
    try:
        ops = importlib.import_module(f"edgeinfer.backends.{key}.ops").DEVICE_OPS
        ops.check([op])
    except ImportError as reason:  # the device's dependencies are not installed
        pytest.skip(str(reason))
    table = Weight("enc.blk.0.attn_rel_b.weight", 0, 128, 1)
    with pytest.raises(UnsupportedModel, match=f"{key} cannot run the op attention: it does not know the field relat"):
        ops.check([replace(op, relative=table)])


def test_a_table_of_another_size_is_refused() -> None:
    with open_model(FOLDER / "t5encoder-bf16.gguf") as model:
        tensors = dict(model.file.tensors)
        tensors["enc.blk.0.attn_rel_b.weight"] = tensors["enc.blk.0.attn_q.weight"]
        hp = Hyperparameters(model.file.metadata, tensors, 96)
    with pytest.raises(BadGGUF, match="attn_rel_b"):
        architecture_of("t5encoder").build(hp)
