"""A whole model as a graph for other programs, in the conventions of onnxruntime-genai and optimum.

In: a model. Out: an `OnnxGraph` with inputs input_ids, attention_mask and past_key_values (also position_ids, if
attention cannot count positions itself or they are learned), whose outputs are the logits of every token and the
present keys and values. Independent of files.
"""

from __future__ import annotations

from edgeinfer.backends.onnx import matrices
from edgeinfer.backends.onnx.attention import HEAD_MULTIPLE, fits_grouped, grouped_inputs, rotary_inputs
from edgeinfer.backends.onnx.graph import CONTRIB, FLOAT, INT32, INT64, OnnxGraph
from edgeinfer.backends.onnx.lowering import OnnxLowering
from edgeinfer.backends.onnx.matrices import BlockForm, form_of
from edgeinfer.backends.onnx.op import DEVICE_OPS
from edgeinfer.backends.onnx.values import Value
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
        attended = graph.nodes(
            "GroupQueryAttention",
            [*sources, *past, *self._counts, *turns],
            ("?", *present),
            domain=CONTRIB,
            num_heads=op.heads,
            kv_num_heads=op.kv_heads,
            scale=op.scale,
            softcap=op.soft_cap or 0.0,
            do_rotary=int(rotation is not None),
            local_window_size=-1 if op.window is None else op.window,
        )
        return graph.reshape(attended[0], -1, op.heads * op.value_width)
