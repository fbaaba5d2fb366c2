"""A whole model for onnxruntime-genai, optimum and plain ONNX Runtime: graph, weights and configuration in a folder.

In: a model. Out: model.onnx, model.onnx.data and genai_config.json. The graph has inputs input_ids, attention_mask and
past_key_values (also position_ids, if attention cannot count positions itself or they are learned); its outputs are the
logits of every token and the present keys and values. The caller must ensure that no incomplete folder is left behind.
Independent of tokenizers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.backends.onnx import matrices
from edgeinfer.backends.onnx.attention import (
    HEAD_MULTIPLE,
    fits_grouped,
    grouped_attention,
    grouped_inputs,
    rotary_inputs,
)
from edgeinfer.backends.onnx.graph import FLOAT, INT32, INT64, OnnxGraph
from edgeinfer.backends.onnx.lowering import OnnxLowering, Value
from edgeinfer.backends.onnx.matrices import BlockForm, form_of
from edgeinfer.backends.onnx.ops import DEVICE_OPS
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec, whole
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.steps import Progress

INPUT_IDS, MASK, POSITION_IDS, LOGITS = "input_ids", "attention_mask", "position_ids", "logits"
PAST = ("past_key_values.%d.key", "past_key_values.%d.value")
PRESENT = ("present.%d.key", "present.%d.value")


def export_graph(spec: ModelSpec, file: GGUFFile, n_context: int, progress: Progress) -> OnnxGraph:
    """The model as a graph. Raises UnsupportedModel if GroupQueryAttention does not support its heads."""
    DEVICE_OPS.check(spec.ops())
    if not fits_grouped(spec):
        raise UnsupportedModel(f"{_why_not_grouped(spec)}; --device onnx runs this model, by plain operators")
    graph = OnnxGraph()
    around = _Exported(graph)
    named = OnnxLowering(graph, file, around, n_context).lower(whole(spec), progress)
    graph.node("Reshape", (named[spec.logits], around.by_sequence()), out=LOGITS)
    graph.output(LOGITS, FLOAT, ("batch_size", "sequence_length", spec.n_vocab))
    return graph


def _why_not_grouped(spec: ModelSpec) -> str:
    """Why GroupQueryAttention does not support the heads of a model."""
    if spec.shares_kv:
        return "layers attend to the keys and values of others, and GroupQueryAttention has those of its own"
    for layer in spec.kv:
        if layer.key_width != layer.value_width:
            widths = f"keys are {layer.key_width} wide and values {layer.value_width}"
            return f"{widths}, and GroupQueryAttention takes one width for both"
    odd = next(layer.key_width for layer in spec.kv if layer.key_width % HEAD_MULTIPLE)
    return f"heads are {odd} wide, and GroupQueryAttention takes multiples of {HEAD_MULTIPLE}"


class _Exported:
    """The environment in those programs' names; tokens are [batch, sequence]."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph
        self._ids = graph.input(INPUT_IDS, INT64, ("batch_size", "sequence_length"))
        mask = graph.input(MASK, INT64, ("batch_size", "total_sequence_length"))
        total = graph.node("Gather", (graph.node("Shape", (mask,)), graph.whole(1)), axis=0)
        count = graph.node("ReduceSum", (mask, graph.numbers(1)), keepdims=0)
        last = graph.node("Sub", (count, graph.whole(1)))
        self._counts = [graph.node("Cast", (value,), to=INT32) for value in (last, total)]
        shape = graph.node("Shape", (self._ids,))
        self._by_sequence = graph.node("Concat", (shape, graph.numbers(-1)), axis=0)

    def by_sequence(self) -> str:
        """The shape [batch, sequence, -1]."""
        return self._by_sequence

    def embedded(self, lowering: OnnxLowering, op: Embed) -> str:
        """Embedding rows, decoded by the graph."""
        graph, weight = self._graph, op.weight
        source = format_of(lowering.file.tensors[weight.tensor].ggml_type)
        form = form_of(source)
        if isinstance(form, BlockForm) and isinstance(source, BlockFormat):
            rows = self._decoded(lowering, op, source, form)
        else:
            table = graph.weight("embedding", matrices.floats(lowering.file, (weight,)))
            rows = graph.node("Gather", (table, self._ids), axis=0)
        scaled = rows if op.scale == 1.0 else graph.node("Mul", (rows, graph.scalar(op.scale)))
        return graph.reshape(scaled, -1, weight.columns)

    def _decoded(self, lowering: OnnxLowering, op: Embed, source: BlockFormat, form: BlockForm) -> str:
        graph, n_rows, columns = self._graph, op.weight.n_rows, op.weight.columns
        held = matrices.blocks(lowering.file, (op.weight,), source, form)
        codes = graph.weight("embedding.codes", held.codes.reshape(n_rows, -1))
        inputs = (codes, self._ids, graph.weight("embedding.scales", held.scales))
        attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": form.block, "bits": form.bits}
        rows = graph.contrib("GatherBlockQuantized", inputs, **attributes)
        if held.minimums is None:
            return rows
        table = graph.weight("embedding.minimums", held.minimums.T)
        minimums = graph.node("Gather", (table, self._ids), axis=0)
        cut = graph.reshape(rows, -1, columns // form.block, form.block)
        return graph.node("Add", (cut, graph.reshape(minimums, -1, columns // form.block, 1)))

    def placed(self, lowering: OnnxLowering, value: str, op: PositionEmbed) -> str:
        """Add the rows of the given positions."""
        graph = self._graph
        ids = graph.input(POSITION_IDS, INT64, ("batch_size", "sequence_length"))
        table = graph.weight("positions", matrices.floats(lowering.file, (op.weight,)))
        rows = graph.node("Gather", (table, ids), axis=0)
        return graph.node("Add", (value, graph.reshape(rows, -1, op.weight.columns)))

    def taken(self, lowering: OnnxLowering, value: str) -> str:
        """All rows: these programs select the logits themselves."""
        return value

    def rotated(self, lowering: OnnxLowering, value: str, op: Rope) -> str:
        """A separate rotation, by the given positions."""
        graph = self._graph
        positions = graph.input(POSITION_IDS, INT64, ("batch_size", "sequence_length"))
        inputs = (graph.node("Reshape", (value, self._by_sequence)), positions, *lowering.rotations(op.table))
        partial = op.table.rotary_width < op.head_width
        width = {"num_heads": op.heads, "rotary_embedding_dim": op.table.rotary_width} if partial else {}
        turned = graph.contrib("RotaryEmbedding", inputs, **width)
        return graph.reshape(turned, -1, op.heads * op.head_width)

    def attended(self, lowering: OnnxLowering, op: Attention, key: Value, value: Value) -> str:
        """GroupQueryAttention over the past and present of a layer."""
        graph = self._graph
        query, key, rotation = rotary_inputs(lowering.value(op.query), key)
        parts = grouped_inputs(lowering, query, key, value)
        sources = [graph.node("Reshape", (part, self._by_sequence)) if part else "" for part in parts]
        past_shape, present_shape = (
            ("batch_size", op.kv_heads, rows, op.key_width)
            for rows in ("past_sequence_length", "total_sequence_length")
        )
        past = [graph.input(name % op.layer, FLOAT, past_shape) for name in PAST]
        present = [name % op.layer for name in PRESENT]
        for name in present:
            graph.output(name, FLOAT, present_shape)
        turns = [] if rotation is None else lowering.rotations(rotation.table)
        inputs = [*sources, *past, *self._counts, *turns]
        window = -1 if op.window is None else op.window
        return grouped_attention(graph, op, inputs, present, rotates=rotation is not None, local_window_size=window)


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
