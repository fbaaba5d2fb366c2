"""Gemma 3n: what its files must have, which layers are cut or share keys and values, and who runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.lowering.needs import DEVICE_OPS
from edgeinfer.backends.device_ops import DeviceOps
from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.add_to_parts import AddToParts
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.keep_highest import KeepHighest
from edgeinfer.graph.ops.mix_parts import MixParts
from edgeinfer.models.gguf import GGUFFile, TensorInfo
from edgeinfer.models.load import open_model, spec_of
from tests.golden.goldens import DATA
from tests.unit.models.headers import keyed

FILE = DATA / "gemma3n-f32.gguf"
WINDOW = 12
WITHOUT_CUTS = {"gemma3n.activation_sparsity_scale": None}


def changed(tmp_path: Path, changes: dict[str, object], tensors: dict[str, TensorInfo] | None = None) -> ModelSpec:
    """The spec of the file with other keys, under their full names, and further tensors."""
    with GGUFFile.open(FILE) as file:
        own = {name: held for name, held in file.metadata.items() if name.startswith("gemma3n.")}
        values: dict[str, object] = {
            name: held.tolist() if isinstance(held, np.ndarray) else held for name, held in own.items()
        }
        kept = {name: value for name, value in (values | changes).items() if value is not None}
        return spec_of(keyed(tmp_path, "gemma3n", kept), {**file.tensors, **(tensors or {})})


def cuts(spec: ModelSpec) -> list[float | None]:
    """The deviations of each layer's cut."""
    stages = spec.stages[1:-1]
    found = [[op.deviations for op in stage.ops if isinstance(op, KeepHighest)] for stage in stages]
    return [own[0] if own else None for own in found]


def test_the_last_layers_attend_to_the_last_one_of_their_kind() -> None:
    with open_model(FILE) as model:
        found = [op for op in model.spec.ops() if isinstance(op, Attention)]
    windows = [WINDOW, None, WINDOW, None, WINDOW]
    assert [(op.layer, op.window, op.scale) for op in found] == [
        (layer, window, 1.0) for layer, window in zip((0, 1, 2, 1, 2), windows, strict=True)
    ]


def test_keys_and_values_that_no_layer_reads_may_be_in_the_file(tmp_path: Path) -> None:
    """As in published files, whose checkpoints hold them."""
    with GGUFFile.open(FILE) as file:
        further = {f"blk.4.{part}": file.tensors[f"blk.0.{part}"] for part in ("attn_k.weight", "attn_v.weight")}
        odd = {"blk.4.attn_z.weight": file.tensors["blk.0.attn_k.weight"]}
    assert changed(tmp_path, {}, further) == changed(tmp_path, {})
    with pytest.raises(UnsupportedModel, match=r"blk\.4\.attn_z\.weight"):
        changed(tmp_path, {}, odd)


def test_layers_are_cut_as_the_file_says_or_the_first_ten(tmp_path: Path) -> None:
    own = [pytest.approx(0.6745, abs=1e-4), pytest.approx(0.2533, abs=1e-4)]
    assert cuts(changed(tmp_path, {})) == [*own, None, None, None]
    assert cuts(changed(tmp_path, WITHOUT_CUTS)) == [pytest.approx(1.64485, abs=1e-5)] * 5


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("altup.active_idx", 1, "altup.active_idx is 1; edgeinfer has models where it is 0"),
        ("altup.num_inputs", None, "altup.num_inputs"),
        ("altup.num_inputs", 3, "altup_proj.weight has shape"),
        ("altup.num_inputs", 1, "must be between 2 and 16"),
        ("activation_sparsity_scale", [0.5] * 4, "must hold a number for each of 5 layers"),
        ("activation_sparsity_scale", [float("inf")] * 5, "or -infinity"),
        ("activation_sparsity_scale", [float("nan")] * 5, "or -infinity"),
        ("attention.shared_kv_layers", 5, "must be between 0 and 4"),
        ("attention.shared_kv_layers", 0, "no tensor blk.3.attn_k.weight"),
        ("embedding_length_per_layer_input", 0, "is 0, but layers need inputs"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, key: str, value: object, message: str) -> None:
    with pytest.raises((BadGGUF, UnsupportedModel), match=message):
        changed(tmp_path, {f"gemma3n.{key}": value})


def of_kind(kind: type[Op]) -> Op:
    with open_model(FILE) as model:
        return next(op for op in model.spec.ops() if isinstance(op, kind))


@pytest.mark.parametrize("kind", [MixParts, AddToParts])
def test_the_cpu_refuses_parts_that_are_no_whole_vectors(kind: type[Op]) -> None:
    op = of_kind(kind)
    DEVICE_OPS.check([op])
    with pytest.raises(UnsupportedModel, match="it takes parts of a multiple of 16 columns, not 24"):
        DEVICE_OPS.check([replace(op, width=24)])  # type: ignore[call-arg]


@pytest.mark.parametrize("device", ["onnx", "openvino", "cuda"])
def test_other_devices_refuse_it_by_name(device: str) -> None:
    ops: DeviceOps[object] = DeviceOps(f"edgeinfer.backends.{device}.ops", device)  # type: ignore[type-var]
    with pytest.raises(UnsupportedModel, match=f"{device} cannot run the op mix_parts: it has no such op"):
        ops.check_kinds([of_kind(MixParts)])
