"""From the ops of a fragment to an OpenVINO model: every op as nodes, every weight as compressed constants.

In: a fragment and its file. Out: a `Graph`: the model with its inputs and outputs. Values are rows float32[1, T, W], or
float32[1, heads, T, K] between the ops of attention. Embeddings are looked up outside the graph, so their rows are
inputs. Independent of devices, steps and what is done with the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import openvino as ov
from openvino import Node
from openvino import opset13 as op

from edgeinfer.backends.openvino.attention import GraphStates
from edgeinfer.backends.openvino.nodes import indices, parameter
from edgeinfer.backends.openvino.op import DEVICE_OPS
from edgeinfer.backends.openvino.signature import Signature, signature_of
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import Fragment
from edgeinfer.graph.operands import Weight
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress


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
