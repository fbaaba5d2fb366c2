"""Keys and values as graph states, and attention over them.

In: keys, values and queries split into heads. Out: attention nodes, and the sinks that update the states. A state is
float32[1, kv heads, rows, width] and grows by the step's tokens; a mask says which of its rows a token sees. Without
soft-capped scores the nodes have the form that plugins run as a single op with a cache that grows in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import openvino as ov
from openvino import Node, opset6
from openvino import opset13 as op

from edgeinfer.backends.openvino.nodes import indices, numbers
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.operands import PagedKV
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.store_kv import StoreKV


def state_name(layer: int, part: str) -> str:
    """The name of a layer's state; part is "key" or "value"."""
    return f"cache.{layer}.{part}"


class GraphStates:
    """The states of a graph."""

    def __init__(self, kv: Sequence[PagedKV], parameters: Mapping[str, Node]) -> None:
        self._kv, self._parameters = kv, parameters
        self._rows: dict[int, tuple[Node, Node]] = {}
        self.sinks: list[Node] = []

    def append(self, each: StoreKV, key: Node, value: Node) -> None:
        """Append the step's keys and values, float32[1, kv heads, T, K], to a layer's state."""
        self._rows[each.layer] = (
            self._grown(each, "key", key, each.key_width),
            self._grown(each, "value", value, each.value_width),
        )

    def _grown(self, each: StoreKV, part: str, new: Node, width: int) -> Node:
        name = state_name(each.layer, part)
        empty = op.constant(np.zeros((1, each.kv_heads, 0, width), np.float32))
        shape = ov.PartialShape([-1, each.kv_heads, -1, width])
        kept = opset6.read_value(empty, name, ov.Type.f32, shape)
        kept = op.gather(kept, self._parameters["beam"], numbers(0))
        grown = op.concat([kept, new], 2)
        self.sinks.append(opset6.assign(grown, name))
        return grown

    def attend(self, each: Attention, query: Node, mask: Node) -> Node:
        """Attention of queries float32[1, heads, T, key width]. Returns [1, heads, T, value width].

        Raises UnsupportedModel.
        """
        if each.layer not in self._rows:
            raise UnsupportedModel(f"attention of layer {each.layer} is in a part that does not store its keys")
        key_rows, value_rows = self._rows[each.layer]
        key, value = _repeated(each, key_rows, each.key_width), _repeated(each, value_rows, each.value_width)
        if each.soft_cap is None:
            scale = op.constant(np.array(each.scale, np.float32))
            return op.scaled_dot_product_attention(query, key, value, mask, scale, causal=False)
        scores = op.multiply(op.matmul(query, key, False, True), _constant(each.scale / each.soft_cap))
        capped = op.add(op.multiply(op.tanh(scores), _constant(each.soft_cap)), mask)
        return op.matmul(op.softmax(capped, 3), value, False, False)


def _repeated(each: Attention, rows: Node, width: int) -> Node:
    """Rows of kv heads float32[1, G, S, width], repeated for each query head."""
    repeats = each.heads // each.kv_heads
    if repeats == 1:
        return rows
    apart = op.unsqueeze(rows, numbers(2))
    wide = op.broadcast(apart, indices(1, 1, repeats, 1, 1), broadcast_spec="BIDIRECTIONAL")
    return op.reshape(wide, indices(0, each.heads, -1, width), True)


def _constant(value: float) -> Node:
    return op.constant(np.full((1, 1, 1, 1), value, np.float32))
