"""Attention over a cache of rows, as graph nodes: with GroupQueryAttention, or with plain operators.

In: queries, keys and values. Out: attended values; new keys and values go to the cache. A mask says what each token
sees, so rows may be in any order. Cache layouts: [1, G, rows, K], written in place, for GroupQueryAttention, which
requires keys and values of one width and one layer; [rows, G, width] for plain operators, which read existing rows and
output the new ones. Independent of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.backends.onnx.graph import CONTRIB, FLOAT, INT32, INT64, OnnxGraph
from edgeinfer.backends.onnx.lowering import OnnxLowering, TensorPart, Turned, Value, input_name
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rope import Rope

HEAD_MULTIPLE = 8
"""GroupQueryAttention requires head widths that are multiples of this."""
ROTATED_MULTIPLE = 16
"""Where it also rotates, head widths and rotated widths must be multiples of this."""
POSITIONS, OUTPUTS, LAST, TOTAL = "positions", "outputs", "last", "total"


def fits_grouped(spec: ModelSpec) -> bool:
    """Whether GroupQueryAttention supports the heads of all layers."""
    kept = spec.kv
    return not spec.shares_kv and all(
        layer.key_width == layer.value_width and layer.key_width % HEAD_MULTIPLE == 0 for layer in kept
    )


def mask_name(window: int | None) -> str:
    """The mask input: 0 or minus infinity, float32[1, 1, T, rows + T]."""
    return "mask" if window is None else f"mask.{window}"


def cache_names(layer: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """The inputs and outputs for a layer's keys and values."""
    return (f"keys.{layer}", f"values.{layer}"), (f"new_keys.{layer}", f"new_values.{layer}")


def may_rotate(op: Rope) -> bool:
    """Whether GroupQueryAttention can rotate heads of these widths itself."""
    return op.head_width % ROTATED_MULTIPLE == 0 and op.table.rotary_width % ROTATED_MULTIPLE == 0


def rotary_inputs(query: Value, key: Value) -> tuple[Value, Value, Rope | None]:
    """Query and key before rotation, and the rotation, if one attention can apply it to both."""
    if not isinstance(query, Turned) or not isinstance(key, Turned):
        return query, key, None
    if query.rope.table == key.rope.table and may_rotate(query.rope):
        return query.value, key.value, query.rope
    return query, key, None


def grouped_inputs(lowering: OnnxLowering, query: Value, key: Value, value: Value) -> list[str]:
    """Query, key and value as GroupQueryAttention takes them, two-dimensional: one tensor if they are parts of one."""
    if isinstance(query, TensorPart) and isinstance(key, TensorPart) and isinstance(value, TensorPart):
        in_order = (query.index, key.index, value.index) == (0, 1, 2) and len(query.widths) == 3
        if in_order and query.whole == key.whole == value.whole:
            return [query.whole, "", ""]
    return [lowering.plain(part) for part in (query, key, value)]


def grouped_attention(
    graph: OnnxGraph, op: Attention, inputs: Sequence[str], outputs: Sequence[str], *, rotates: bool, **more: int
) -> str:
    """GroupQueryAttention: rows [tokens, heads * K]; `outputs` are the keys and values that it writes."""
    attended, *_ = graph.nodes(
        "GroupQueryAttention",
        inputs,
        ("?", *outputs),
        domain=CONTRIB,
        num_heads=op.heads,
        kv_num_heads=op.kv_heads,
        scale=op.scale,
        softcap=op.soft_cap or 0.0,
        do_rotary=int(rotates),
        **more,
    )
    return graph.reshape(attended, -1, op.heads * op.value_width)


class LaneSurroundings:
    """The bindings of our own lanes: embedded tokens, positions, output rows; plain attention."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph
        self._rows: dict[int, tuple[str, str]] = {}

    def embedded(self, lowering: OnnxLowering, op: Embed) -> str:
        """The embedding rows, which the host looks up."""
        return self._graph.input(input_name(op.out), FLOAT, ("tokens", op.weight.columns))

    def placed(self, lowering: OnnxLowering, value: str, op: PositionEmbed) -> str:
        """The rows unchanged: the host has added positions already. Raises UnsupportedModel for other rows."""
        if value != input_name(op.out):
            raise UnsupportedModel("learned positions stand in another part than the embedding they belong to")
        return value

    def taken(self, lowering: OnnxLowering, value: str) -> str:
        """The rows whose logits are requested."""
        return self._graph.node("Gather", (value, self._graph.input(OUTPUTS, INT64, ("outputs",))), axis=0)

    def rotated(self, lowering: OnnxLowering, value: str, op: Rope) -> str:
        """A separate rotation."""
        graph = self._graph
        inputs = (
            graph.reshape(value, 1, -1, op.heads * op.head_width),
            self._positions(),
            *lowering.rotations(op.table),
        )
        partial = op.table.rotary_width < op.head_width
        width = {"num_heads": op.heads, "rotary_embedding_dim": op.table.rotary_width} if partial else {}
        turned = graph.contrib("RotaryEmbedding", inputs, **width)
        return graph.reshape(turned, -1, op.heads * op.head_width)

    def _positions(self) -> str:
        return self._graph.input(POSITIONS, INT64, (1, "tokens"))

    def _mask(self, window: int | None) -> str:
        return self._graph.input(mask_name(window), FLOAT, (1, 1, "tokens", "rows"))

    def attended(self, lowering: OnnxLowering, op: Attention, key: Value, value: Value) -> str:
        """Attention in plain operators: products, softmax and concatenation."""
        graph, groups = self._graph, op.kv_heads
        repeats = op.heads // groups
        query = graph.reshape(lowering.tensor(op.query), -1, groups, repeats, op.key_width)
        query = graph.node("Transpose", (query,), perm=(1, 2, 0, 3))
        keys, values = self._all_rows(lowering, op, key, value)
        scores = graph.node("MatMul", (graph.reshape(query, groups, -1, op.key_width), keys))
        scores = graph.node("Mul", (scores, graph.scalar(op.scale)))
        if op.soft_cap is not None:
            scores = lowering.capped(scores, op.soft_cap)
        mask = self._mask(op.window)
        by_head = graph.node("Concat", (graph.numbers(groups, repeats), graph.node("Shape", (mask,), start=2)), axis=0)
        masked = graph.node("Add", (graph.node("Reshape", (scores, by_head)), mask))
        shares = graph.node("Softmax", (masked,), axis=-1)
        flat = graph.node("Reshape", (shares, graph.node("Shape", (scores,))))
        attended = graph.reshape(graph.node("MatMul", (flat, values)), groups, repeats, -1, op.value_width)
        turned = graph.node("Transpose", (attended,), perm=(2, 0, 1, 3))
        return graph.reshape(turned, -1, op.heads * op.value_width)

    def _all_rows(self, lowering: OnnxLowering, op: Attention, key: Value, value: Value) -> tuple[str, str]:
        """Cached and new rows per head: keys as [G, width, rows], values as [G, rows, width].

        The new rows are graph outputs. Built once for all layers that attend to them.
        """
        if op.layer not in self._rows:
            (inputs, outputs), found = cache_names(op.layer), []
            parts = (key, op.key_width, (1, 2, 0)), (value, op.value_width, (1, 0, 2))
            for (new, width, order), name, out in zip(parts, inputs, outputs, strict=True):
                found.append(self._joined(lowering.plain(new), (name, out), (op.kv_heads, width), order))
            self._rows[op.layer] = found[0], found[1]
        return self._rows[op.layer]

    def _joined(self, new: str, names: tuple[str, str], head: tuple[int, int], order: tuple[int, ...]) -> str:
        """New rows appended to those of the cache, in order (rows, kv head, width)."""
        graph, (name, out) = self._graph, names
        rows = graph.node("Reshape", (new, graph.numbers(-1, *head)), out=out)
        graph.output(out, FLOAT, ("tokens", *head))
        together = graph.node("Concat", (graph.input(name, FLOAT, ("cached", *head)), rows), axis=0)
        return graph.node("Transpose", (together,), perm=order)


class GroupedSurroundings(LaneSurroundings):
    """The same with GroupQueryAttention, which also rotates."""

    def attended(self, lowering: OnnxLowering, op: Attention, key: Value, value: Value) -> str:
        """One node; new keys and values are written after the cached rows in the same memory."""
        graph = self._graph
        query, key, rotation = rotary_inputs(lowering.value(op.query), key)
        parts = grouped_inputs(lowering, query, key, value)
        heads = (op.heads + 2 * op.kv_heads, 0, 0) if not parts[1] else (op.heads, op.kv_heads, op.kv_heads)
        sources = [
            graph.reshape(part, 1, -1, count * op.key_width) if part else ""
            for part, count in zip(parts, heads, strict=True)
        ]
        names, outputs = cache_names(op.layer)
        shape = (1, op.kv_heads, "slots", op.key_width)
        past = [graph.input(name, FLOAT, shape) for name in names]
        for name in outputs:
            graph.output(name, FLOAT, shape)
        counts = [graph.input(LAST, INT32, (1,)), graph.input(TOTAL, INT32, ())]
        turns = ["", "", ""] if rotation is None else [*lowering.rotations(rotation.table), self._positions()]
        inputs = [*sources, *past, *counts, *turns, self._mask(op.window)]
        return grouped_attention(graph, op, inputs, outputs, rotates=rotation is not None)


def surroundings(graph: OnnxGraph, *, grouped: bool) -> LaneSurroundings:
    """The environment of a lane."""
    return GroupedSurroundings(graph) if grouped else LaneSurroundings(graph)
