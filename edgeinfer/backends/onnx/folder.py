"""A folder for onnxruntime-genai, optimum and plain ONNX Runtime: graph, weights and configuration.

In: a model. Out: model.onnx, model.onnx.data and genai_config.json. The caller must ensure that no incomplete folder is
left behind. Independent of tokenizers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.backends.onnx.export_graph import (
    INPUT_IDS,
    LOGITS,
    MASK,
    PAST,
    POSITION_IDS,
    PRESENT,
    export_graph,
)
from edgeinfer.backends.onnx.graph import OnnxGraph
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress

GRAPH_FILE, WEIGHTS_FILE, SETTINGS_FILE = "model.onnx", "model.onnx.data", "genai_config.json"
ALIGNMENT = 4096
"""Alignment of each weight in bytes, so that readers can map the file."""
KINDS = {"gemma3": "gemma3_text"}
"""onnxruntime-genai's name for an architecture, if it differs."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The BOS, EOS and padding tokens."""

    begin: int | None
    ends: tuple[int, ...]
    fill: int | None


def write_folder(
    folder: Path, spec: ModelSpec, file: GGUFFile, n_context: int, special: SpecialIds, progress: Progress
) -> list[Path]:
    """Write the files to an existing folder; returns their paths. Raises UnsupportedModel, OSError."""
    if len({(op.heads, op.kv_heads, op.key_width) for op in spec.ops() if isinstance(op, Attention)}) > 1:
        raise UnsupportedModel(
            f"layers of this {spec.architecture} have heads of their own, and {SETTINGS_FILE} has one number for all; "
            "--device onnx runs this model"
        )
    graph = export_graph(spec, file, n_context, progress)
    places = _write_weights(folder / WEIGHTS_FILE, graph)
    (folder / GRAPH_FILE).write_bytes(graph.model(WEIGHTS_FILE, places).SerializeToString())
    settings = _settings(spec, n_context, special, graph.input_names)
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return [folder / name for name in (GRAPH_FILE, WEIGHTS_FILE, SETTINGS_FILE)]


def _write_weights(path: Path, graph: OnnxGraph) -> dict[str, tuple[int, int]]:
    """Write the large initialisers one after the other; returns the offset and length of each."""
    places: dict[str, tuple[int, int]] = {}
    with path.open("wb") as out:
        for name, array in graph.large.items():
            out.seek(-(-out.tell() // ALIGNMENT) * ALIGNMENT)
            places[name] = out.tell(), array.nbytes
            out.write(array.data)
    return places


def _settings(spec: ModelSpec, n_context: int, special: SpecialIds, inputs: tuple[str, ...]) -> dict[str, object]:
    """The contents of genai_config.json."""
    named = {INPUT_IDS: INPUT_IDS, MASK: MASK, "past_key_names": PAST[0], "past_value_names": PAST[1]}
    if POSITION_IDS in inputs:
        named[POSITION_IDS] = POSITION_IDS
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": GRAPH_FILE,
        "head_size": spec.head_width,
        "hidden_size": spec.width,
        "inputs": named,
        "outputs": {LOGITS: LOGITS, "present_key_names": PRESENT[0], "present_value_names": PRESENT[1]},
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.n_layers,
        "num_key_value_heads": spec.kv_heads,
    }
    fill = special.fill if special.fill is not None else (*special.ends, 0)[0]
    model = {
        "bos_token_id": special.begin if special.begin is not None else fill,
        "context_length": n_context,
        "decoder": decoder,
        "eos_token_id": list(special.ends) or [fill],
        "pad_token_id": fill,
        "type": KINDS.get(spec.architecture, spec.architecture),
        "vocab_size": spec.n_vocab,
    }
    search = {"do_sample": False, "max_length": n_context, "min_length": 0, "num_beams": 1}
    return {"model": model, "search": {**search, "past_present_share_buffer": True}}
