"""Every op has a file, says what it is of itself, and every device's folder of ops names ops there are."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest

import edgeinfer
from edgeinfer.adapter_choice import AdapterChoice
from edgeinfer.backends.cpu.lowering.needs import DEVICE_OPS
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops import OPS
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.rotary import RopeSections, RopeTable
from edgeinfer.models.load import head_in, open_model
from edgeinfer.models.projector_file import open_projector
from edgeinfer.models.work import pass_work
from edgeinfer.scheduling.cost.work import work_of
from tests.adapter_files import write_adapter
from tests.conformance.test_architectures import CONVERTED, EMBEDDING, FILES
from tests.golden.goldens import DATA

PACKAGE = Path(edgeinfer.__file__).parent
FOLDERS = sorted(PACKAGE.glob("backends/*/ops"))


@dataclasses.dataclass(frozen=True, slots=True)
class Gloss(GatedAct):
    """An op that no device has heard of."""

    shine: float = 0.0


@pytest.mark.parametrize("key", OPS.keys())
def test_an_op_is_a_frozen_record_named_as_its_file(key: str) -> None:
    kind = OPS.get(key)
    assert issubclass(kind, Op)
    assert kind.__module__ == f"edgeinfer.graph.ops.{key}"
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_a_device_names_ops_that_there_are(folder: Path) -> None:
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} <= set(OPS.keys())


def test_the_cpu_runs_every_op() -> None:
    assert {path.stem for path in (PACKAGE / "backends/cpu/ops").glob("*.py")} - {"__init__"} == set(OPS.keys())


def test_every_op_is_used_by_a_model_with_goldens(tmp_path: Path) -> None:
    adapter = AdapterChoice(str(write_adapter(FILES[0], tmp_path / "adapter.gguf")))
    with open_model(FILES[0], adapters=[adapter]) as model:
        used = {op.kind for op in model.spec.ops()}
    for path in [*FILES, *EMBEDDING, *CONVERTED]:
        with open_model(path) as model:
            head = head_in(model.file.metadata, model.file.tensors)
            used |= {op.kind for op in (*model.spec.ops(), *(() if head is None else head.spec.ops()))}
    with open_model(DATA / "rows" / "qwen3vl-deep-f32.gguf", rows=True) as model:
        used |= {op.kind for op in model.spec.ops()}
    for path in [*(DATA / "vision").glob("mmproj-*.gguf"), *(DATA / "sounds").glob("mmproj-*.gguf")]:
        with open_projector(path) as projector:
            used |= {op.kind for graph in projector.encoders.graphs for op in graph.ops()}
    assert used == set(OPS.keys())


def test_an_op_without_a_file_is_refused_by_its_name() -> None:
    op = Gloss("gate", "up", "hidden", 64, "silu")
    for check in (DEVICE_OPS.check, DEVICE_OPS.check_kinds):
        with pytest.raises(UnsupportedModel, match=r"cpu .* test_ops: it has no such op; --device llamacpp"):
            check([op])


def test_a_field_that_a_device_does_not_read_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gloss, "__module__", GatedAct.__module__)
    DEVICE_OPS.check([Gloss("gate", "up", "hidden", 64, "silu")])
    with pytest.raises(UnsupportedModel, match="cannot run the op gated_act: it does not know the field shine"):
        DEVICE_OPS.check([Gloss("gate", "up", "hidden", 64, "silu", shine=0.5)])


@pytest.mark.parametrize("device", ["cuda", "onnx", "openvino"])
def test_devices_for_token_ids_refuse_rows_and_axes_by_name(device: str) -> None:
    embed, rope = Embed(Weight("token_embd.weight", 0, 8, 32), "x"), Rope("query", 2, 16, RopeTable(1e4, 16))
    try:
        ops = importlib.import_module(f"edgeinfer.backends.{device}.ops").DEVICE_OPS
        ops.check([embed, rope])
    except ImportError as reason:  # the device's dependencies are not installed
        pytest.skip(str(reason))
    for op, field in ((dataclasses.replace(embed, rows=True), "rows"), (rope_of_axes(rope), "sections")):
        with pytest.raises(
            UnsupportedModel, match=f"{device} cannot run the op {op.kind}: it does not know .* {field}"
        ):
            ops.check([op])


def rope_of_axes(rope: Rope) -> Rope:
    """It with three positions a token."""
    return dataclasses.replace(rope, sections=RopeSections(4, 2, 2))


@pytest.mark.parametrize("path", [*FILES, *EMBEDDING, *CONVERTED], ids=lambda path: path.stem)
def test_costs_do_not_depend_on_the_names_of_buffers(path: Path) -> None:
    with open_model(path) as model:
        spec, tensors = model.spec, model.file.tensors
    other = renamed(spec)
    assert {buffer.name for buffer in other.buffers}.isdisjoint(buffer.name for buffer in spec.buffers)
    assert [stage.shape for stage in work_of(other, tensors).stages] == [
        stage.shape for stage in work_of(spec, tensors).stages
    ]
    assert pass_work(other, tensors, 5, 100) == pass_work(spec, tensors, 5, 100)


def renamed(spec: ModelSpec) -> ModelSpec:
    """The same model with buffers of other names."""
    names = {buffer.name: f"b{number}" for number, buffer in enumerate(spec.buffers)}
    stages = tuple(
        dataclasses.replace(stage, ops=tuple(_renamed(op, names) for op in stage.ops)) for stage in spec.stages
    )
    buffers = tuple(dataclasses.replace(buffer, name=names[buffer.name]) for buffer in spec.buffers)
    return dataclasses.replace(spec, stages=stages, buffers=buffers, logits=names[spec.logits])


def _renamed(op: Op, names: dict[str, str]) -> Op:
    assert dataclasses.is_dataclass(op)
    held = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    changed: dict[str, Any] = {}
    for name, value in held.items():
        if isinstance(value, str) and value in names:
            changed[name] = names[value]
        elif isinstance(value, tuple) and value and all(isinstance(each, str) for each in value):
            changed[name] = tuple(names[each] for each in value)
    return dataclasses.replace(op, **changed)


def test_a_product_of_plain_rows_costs_the_rounding_of_its_source() -> None:
    with open_model(next(path for path in FILES if path.stem == "llama-q4_0")) as model:
        spec, tensors = model.spec, model.file.tensors
    down = next(op for op in spec.ops() if isinstance(op, MatMul) and op.source == "hidden")
    (layer,) = [stage for stage in spec.stages if down in stage.ops]
    without = dataclasses.replace(layer, ops=tuple(op for op in layer.ops if op is not down))
    works = [work_of(dataclasses.replace(spec, stages=(stage,)), tensors).stages[0].shape for stage in (layer, without)]
    assert works[0].n_elements - works[1].n_elements == down.weight.columns
