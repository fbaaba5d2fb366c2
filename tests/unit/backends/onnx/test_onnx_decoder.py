"""Decoder folders on the onnx device: graphs that edgeinfer did not write, and what is refused with which words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx.helper")

import onnx

from edgeinfer.backends.base import DeviceOptions, Limits, open_device
from edgeinfer.backends.evaluator import Interrupted, StopFlag
from edgeinfer.backends.onnx.decoder import FolderEvaluator, paths_of
from edgeinfer.engine.opening.evaluator import open_evaluator
from edgeinfer.engine.run.evaluators import SequenceEvaluator, open_subject
from edgeinfer.errors import BadSetting, DeviceUnavailable, EdgeInferError, ModelNotFound, UnsupportedModel
from edgeinfer.graph.step import Batch
from edgeinfer.load_options import LoadOptions
from edgeinfer.steps import no_progress
from tests.decoder_folders import COPIED, SHARED, exported
from tests.golden.goldens import Golden, Player, distance
from tests.optimum_folder import write_optimum
from tests.unit.engine.run.test_executor import chain

GOLDEN = Golden.read("llama-f32")
LIMITS = Limits(n_context=256, n_pages=12, max_tokens=256, max_outputs=64)
EXACT, HALF = 1e-4, 5e-3
"""Distance from transformers, of float32 throughout and where keys, values and logits are float16."""
OPTIONS = DeviceOptions(n_workers=1)


def opened(folder: Path, limits: Limits = LIMITS) -> SequenceEvaluator:
    subject = open_subject(folder, LoadOptions(device="onnx", n_context=limits.n_context))
    return open_evaluator(subject, limits, OPTIONS, LoadOptions(device="onnx"))


def feed(evaluator: SequenceEvaluator, sequence: int, tokens: np.ndarray) -> np.ndarray:
    """Logits of all of these tokens, which are kept, in parts of at most 50."""
    found = []
    for part in np.split(tokens, range(50, len(tokens), 50)):
        order = np.arange(len(part), dtype=np.int32)
        batch = replace(chain(sequence, evaluator.n_cached(sequence), part.tolist()), outputs=order)
        found.append(evaluator.evaluate(batch).copy())
        evaluator.commit(sequence, order)
    return np.concatenate(found)


@pytest.mark.parametrize("options", [{}, {"half": True}, {"branches": True}])
def test_a_graph_of_plain_operators_gives_the_logits_of_transformers(tmp_path: Path, options: dict[str, bool]) -> None:
    evaluator = opened(write_optimum(tmp_path / "llama", GOLDEN.model, **options))
    allowed = HALF if "half" in options else EXACT
    sequence = evaluator.create()
    assert GOLDEN.error(feed(evaluator, sequence, GOLDEN.tokens)) < allowed
    evaluator.truncate(sequence, 20)
    again = feed(evaluator, sequence, GOLDEN.tokens[20:])
    assert distance(again[:, GOLDEN.columns], GOLDEN.logits[20:]) < allowed
    evaluator.close()


@pytest.mark.parametrize("kind", [SHARED, COPIED])
def test_an_exported_folder_gives_the_logits_of_the_onnx_device(kind: str) -> None:
    evaluator, device = opened(exported(GOLDEN.model, kind)), open_device("onnx", OPTIONS)
    with Player(device, GOLDEN) as player:
        expected = player.feed(GOLDEN.tokens)
    assert distance(feed(evaluator, evaluator.create(), GOLDEN.tokens), expected) < EXACT
    evaluator.close()
    device.close()


def test_a_tree_is_read_path_by_path() -> None:
    parents = np.array([-1, 0, 0, 2, 2, 4, -1, -1], np.int32)
    order = np.arange(8, dtype=np.int32)
    batch = Batch(order, np.array([0] * 7 + [1], np.int32), order, parents, order)
    assert paths_of(batch) == [(0, 1), (0, 2, 3), (0, 2, 4, 5), (6,), (7,)]


class _Late(StopFlag):
    """A flag that is set by whoever waits for it, so that only a pass that runs already is broken off by it."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def _interrupted(evaluator: FolderEvaluator, batch: Batch) -> bool:
    """Whether one of many passes was broken off while it ran."""
    for _ in range(500):
        evaluator.heed(_Late())
        try:
            evaluator.evaluate(batch)
        except Interrupted:
            return True
    return False


def test_a_stop_ends_a_pass_that_runs(tmp_path: Path) -> None:
    evaluator = FolderEvaluator(write_optimum(tmp_path / "llama", GOLDEN.model), LIMITS, OPTIONS, no_progress)
    assert _interrupted(evaluator, chain(0, 0, np.resize(GOLDEN.tokens, 200).tolist()))
    evaluator.heed(None)
    order = np.arange(len(GOLDEN.tokens), dtype=np.int32)
    found = evaluator.evaluate(replace(chain(0, 0, GOLDEN.tokens.tolist()), outputs=order))
    assert GOLDEN.error(found) < EXACT
    evaluator.close()


def port(name: str, kind: int, shape: list[object]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def changed(folder: Path, change: object) -> Path:
    """The folder, its graph changed by a function."""
    model = onnx.load(folder / "model.onnx")
    change(model.graph)  # type: ignore[operator]
    onnx.save(model, folder / "model.onnx")
    return folder


def _embeddings(graph: onnx.GraphProto) -> None:
    graph.input.append(port("inputs_embeds", onnx.TensorProto.FLOAT, ["batch_size", "sequence_length", 32]))


def _without_past(graph: onnx.GraphProto) -> None:
    empty = np.zeros((1, 2, 0, 16), np.float32)
    for each in [each for each in graph.input if each.name.startswith("past")]:
        graph.input.remove(each)
        graph.initializer.append(onnx.numpy_helper.from_array(empty, each.name))


def _without_present(graph: onnx.GraphProto) -> None:
    graph.output.remove(next(each for each in graph.output if each.name == "present.1.value"))


def _wide_mask(graph: onnx.GraphProto) -> None:
    mask = next(each for each in graph.input if each.name == "attention_mask")
    mask.CopyFrom(port("attention_mask", onnx.TensorProto.INT64, ["b", 1, "t", "s"]))


def _last_logits(graph: onnx.GraphProto) -> None:
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_embeddings, "wants the input 'inputs_embeds'"),
        (_without_present, r"gives no present\.1\.value"),
        (_wide_mask, "attention_mask has 4 dimensions"),
        (_last_logits, "of every token"),
        (_without_past, "keeps no past"),
    ],
)
def test_graphs_of_other_conventions_are_refused_by_name(tmp_path: Path, change: object, words: str) -> None:
    folder = changed(write_optimum(tmp_path / "llama", GOLDEN.model), change)
    with pytest.raises(UnsupportedModel, match=words) as refused:
        opened(folder)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "contents", "error", "words"),
    [
        ("tokenizer.json", None, ModelNotFound, "has no tokenizer.json; put"),
        ("tokenizer.json", "{}", UnsupportedModel, "cannot be read by the tokenizers package"),
        ("config.json", "[", UnsupportedModel, "cannot be read as JSON"),
        ("model.onnx", "no graph", UnsupportedModel, "ONNX Runtime cannot run this model"),
        (
            "genai_config.json",
            '{"model": {"decoder": {"filename": "other.onnx"}}}',
            ModelNotFound,
            "other.onnx is miss",
        ),
        ("genai_config.json", '{"model": {"decoder": {"filename": "../m.onnx"}}}', UnsupportedModel, "no file of this"),
        ("genai_config.json", '{"model": {"vision": {}}}', UnsupportedModel, "has a part 'vision'"),
        ("genai_config.json", '{"model": {"context_length": 100}}', BadSetting, "--ctx 100 or less"),
    ],
)
def test_incomplete_and_damaged_folders_say_what_is_wrong(
    tmp_path: Path, name: str, contents: str | None, error: type[EdgeInferError], words: str
) -> None:
    folder = write_optimum(tmp_path / "llama", GOLDEN.model)
    if contents is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(contents)
    with pytest.raises(error, match=words):
        opened(folder)


def test_other_devices_other_providers_and_int8_are_refused(tmp_path: Path) -> None:
    folder = write_optimum(tmp_path / "llama", GOLDEN.model)
    for device in ("cpu", "cpu,onnx", "onnx,cpu"):
        with pytest.raises(UnsupportedModel, match="use --device onnx"):
            open_subject(folder, LoadOptions(device=device))
    abacus = LoadOptions(device="onnx:abacus")
    with pytest.raises(DeviceUnavailable, match="no execution provider 'abacus'"):
        open_evaluator(open_subject(folder, abacus), LIMITS, OPTIONS, abacus)
    with pytest.raises(BadSetting, match="q8"):
        opened(folder, replace(LIMITS, kv="q8"))


def test_heads_come_from_the_settings_where_the_graph_does_not_say(tmp_path: Path) -> None:
    def forget(graph: onnx.GraphProto) -> None:
        for each in graph.input:
            if each.name.startswith("past"):
                each.type.tensor_type.shape.dim[1].dim_param = "heads"

    folder = changed(write_optimum(tmp_path / "llama", GOLDEN.model), forget)
    evaluator = opened(folder)
    assert GOLDEN.error(feed(evaluator, evaluator.create(), GOLDEN.tokens)) < EXACT
    evaluator.close()
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"vocab_size": settings["vocab_size"]}))
    with pytest.raises(UnsupportedModel, match="how many heads past_key_values"):
        opened(folder)
