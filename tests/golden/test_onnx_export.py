"""Exported folders, run by ONNX Runtime alone, give the logits of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.load import open_model
from edgeinfer.steps import no_progress
from tests.golden.goldens import DATA, RESULTS, Golden, is_cpu_only

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx.helper")

FORMATS = ("-f32", "-f16", "-q8_0", "-k", "-q4_0")
REFUSED = {
    "openelm-f32": r"genai_config\.json has one number for all; --device onnx runs",
    "minicpm3-f32": r"keys .* values",
}
"""A file of each family that is not exported, and why: heads differ by layer; keys are wider than values."""
FAMILIES = tuple(name.rpartition("-")[0] for name in REFUSED)
NAMES = [
    path.stem
    for path in RESULTS
    if path.stem.endswith(FORMATS) and not (is_cpu_only(path.stem) or path.stem.startswith(FAMILIES))
]


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    from edgeinfer.backends.onnx.folder import SpecialIds, write_folder

    with (
        open_model(DATA / "olmoe-f16.gguf", 256) as model,
        pytest.raises(UnsupportedModel, match=r"onnx cannot run the op router: .* --device cpu"),
    ):
        write_folder(tmp_path, model.spec, model.file, 256, SpecialIds(0, (1,), None), no_progress)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_graph_cannot_say_is_refused(name: str, tmp_path: Path) -> None:
    from edgeinfer.backends.onnx.folder import SpecialIds, write_folder

    with (
        open_model(DATA / f"{name}.gguf", 256) as model,
        pytest.raises(UnsupportedModel, match=REFUSED[name]),
    ):
        write_folder(tmp_path, model.spec, model.file, 256, SpecialIds(0, (1,), None), no_progress)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_exported_graphs_give_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    from edgeinfer.backends.onnx.folder import SpecialIds, write_folder

    golden = Golden.read(name)
    with open_model(golden.model, golden.n_context) as model:
        spec = model.spec
        write_folder(tmp_path, spec, model.file, golden.n_context, SpecialIds(0, (1,), None), no_progress)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    outputs = [value.name for value in session.get_outputs()]
    empty = [np.zeros((1, layer.kv_heads, 0, layer.key_width), np.float32) for layer in spec.kv]
    past = {f"past_key_values.{layer}.{kind}": rows for layer, rows in enumerate(empty) for kind in ("key", "value")}
    logits, at = [], 0
    for chunk in np.split(golden.tokens, [7, 8, 9, 40]):
        if not len(chunk):
            continue
        stop = at + len(chunk)
        given = {
            "input_ids": chunk[None].astype(np.int64),
            "attention_mask": np.ones((1, stop), np.int64),
            "position_ids": np.arange(at, stop)[None],
        }
        found = dict(
            zip(outputs, session.run(outputs, {**past, **{k: v for k, v in given.items() if k in wanted}}), strict=True)
        )
        logits.append(found["logits"][0])
        past = {key: found[key.replace("past_key_values", "present")] for key in past}
        at = stop
    tolerance = 1e-5 if name.endswith(("-f32", "-f16")) else 1e-1
    assert golden.error(np.concatenate(logits)) < tolerance
