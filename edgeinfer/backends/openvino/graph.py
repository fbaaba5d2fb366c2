"""From the ops of a fragment to an OpenVINO model: ops as nodes, weights as compressed constants, a cache as states.

In: a fragment and its file. Out: a `Graph`: the model with its inputs and outputs. Values are rows float32[1, T, W], or
float32[1, heads, T, K] between the ops of attention. Embeddings are looked up outside the graph, so their rows are
inputs. A state of keys or values is float32[1, kv heads, rows, width] and grows by the step's tokens; a mask says which
of its rows a token sees. Without soft-capped scores the nodes have the form that plugins run as a single op with a
cache that grows in place. Independent of devices, steps and what is done with the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from openvino import Node, opset6
from openvino import opset13 as op

from edgeinfer.backends.openvino.feeding import Signature, signature_of
from edgeinfer.backends.openvino.nodes import indices, numbers, parameter
from edgeinfer.backends.openvino.ops import DEVICE_OPS
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import Fragment
from edgeinfer.graph.operands import PagedKV, Weight
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress


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


@dataclass(slots=True)
class Value:
    """A buffer's current value as rows float32[1, T, W], or split into heads, float32[1, heads, T, K]; or both."""

    rows: Node | None = None
    heads: Node | None = None
    sums: dict[tuple[int, int], Node] = field(default_factory=dict)


class OpenVinoLowering:
    """Nodes of one fragment, built op by op."""

    def __init__(self, fragment: Fragment, file: GGUFFile) -> None:
        self._fragment, self.file = fragment, file
        self.signature: Signature = signature_of(fragment)
        self.parameters = {name: parameter(name, shape, is_index) for name, shape, is_index in self.signature.inputs}
        self.caches = GraphStates(fragment.spec.kv, self.parameters)
        self.values = {name: Value(self.parameters[name]) for name in fragment.inputs}
        self.matrices: dict[Weight, Node] = {}

    def model(self, progress: Progress) -> ov.Model:
        """All ops as one model."""
        ops = list(self._fragment.spec.ops())
        for done, each in enumerate(ops):
            DEVICE_OPS.of(each).lower(self, each)
            progress("building the graph", done + 1, len(ops))
        results = [op.result(self.rows(name), f"out.{name}") for name in self._fragment.outputs]
        return ov.Model(results, self.caches.sinks, list(self.parameters.values()), "edgeinfer")

    def set(self, name: str, rows: Node) -> None:
        """Set a buffer to these rows."""
        self.values[name] = Value(rows)

    def set_heads(self, name: str, heads: Node) -> None:
        """Set a buffer to these rows, split into heads."""
        self.values[name] = Value(heads=heads)

    def value(self, name: str) -> Value:
        """The current value of a buffer. Raises UnsupportedModel if it has none."""
        if name not in self.values:
            raise UnsupportedModel(f"a part of {self._fragment.spec.name} reads {name}, which nothing gives it")
        return self.values[name]

    def rows(self, name: str) -> Node:
        """A buffer's value as rows."""
        value = self.value(name)
        if value.rows is None:
            joined = op.transpose(value.heads, indices(0, 2, 1, 3))
            value.rows = op.reshape(joined, indices(0, 0, -1), True)
        return value.rows

    def heads(self, name: str, heads: int, width: int) -> Node:
        """A buffer's value as float32[1, heads, T, width]."""
        value = self.value(name)
        if value.heads is None:
            split = op.reshape(value.rows, indices(0, 0, heads, width), True)
            value.heads = op.transpose(split, indices(0, 2, 1, 3))
        return value.heads
