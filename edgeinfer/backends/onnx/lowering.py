"""From the ops of a fragment to an ONNX graph.

In: a fragment and its file. Out: nodes and initialisers in an `OnnxGraph`. Buffers are two-dimensional, [rows, width];
the contents of a buffer stay deferred as long as a larger operator may absorb them: a residual sum is absorbed by the
norm that reads it; the parts of a merged product and a rotation are absorbed by the attention. Independent of sessions
and caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from edgeinfer.backends import weights
from edgeinfer.backends.onnx.graph import FLOAT, OnnxGraph
from edgeinfer.backends.onnx.matrices import ProductGroup, joined
from edgeinfer.backends.onnx.ops import DEVICE_OPS
from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import Fragment
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor of the graph, [rows, width]."""

    name: str


@dataclass(frozen=True, slots=True)
class Sum:
    """Two tensors whose sum is deferred."""

    left: str
    right: str


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Columns of a tensor that is split into parts of `widths`: the part numbered `index`."""

    whole: str
    index: int
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turned:
    """A value whose rotation is deferred."""

    value: Plain | Sum | TensorPart
    rope: Rope


Value = Plain | Sum | TensorPart | Turned


class Surroundings(Protocol):
    """What differs between our own lanes and graphs for other programs: tokens, attention, outputs."""

    def embedded(self, lowering: OnnxLowering, op: Embed) -> str: ...

    def placed(self, lowering: OnnxLowering, value: str, op: PositionEmbed) -> str: ...

    def attended(self, lowering: OnnxLowering, op: Attention, key: Value, value: Value) -> str: ...

    def rotated(self, lowering: OnnxLowering, value: str, op: Rope) -> str: ...

    def taken(self, lowering: OnnxLowering, value: str) -> str: ...


class OnnxLowering:
    """One fragment as it is lowered to a graph.

    `packed_bytes`: bytes the runtime will hold for packed weights in addition to their initialisers.
    """

    def __init__(self, graph: OnnxGraph, file: GGUFFile, around: Surroundings, table_rows: int) -> None:
        self.graph, self.file = graph, file
        self.around, self._table_rows = around, table_rows
        self.packed_bytes = 0
        self.values: dict[str, Value] = {}
        self.stored: dict[int, tuple[Value, Value]] = {}
        self.attended: set[int] = set()
        self._splits: dict[str, tuple[str, ...]] = {}
        self.sums: dict[tuple[str, int], str] = {}

    def lower(self, fragment: Fragment, progress: Progress) -> Mapping[str, str]:
        """Append all ops; returns the names of the output buffers' tensors. Raises UnsupportedModel."""
        for name in fragment.inputs:
            width = fragment.spec.buffer(name).width
            self.values[name] = Plain(self.graph.input(input_name(name), FLOAT, ("rows." + name, width)))
        stages = fragment.spec.stages
        for done, stage in enumerate(stages):
            for op in joined(stage.ops, self.file.tensors):
                DEVICE_OPS.of(op.ops[0] if isinstance(op, ProductGroup) else op).lower(self, op)
            progress("loading weights", done + 1, len(stages))
        if self.stored.keys() - self.attended:
            layer = min(self.stored.keys() - self.attended)
            raise UnsupportedModel(f"keys of layer {layer} are stored where no attention reads them")
        return {name: self.tensor(name) for name in fragment.outputs}

    def value(self, buffer: str) -> Value:
        """The current value of a buffer. Raises UnsupportedModel if it has none."""
        if buffer not in self.values:
            raise UnsupportedModel(
                f"buffer {buffer} is read before anything is in it; make it an input of the fragment"
            )
        return self.values[buffer]

    def tensor(self, buffer: str) -> str:
        """The name of a buffer's tensor, computed now if it was deferred."""
        name = self.plain(self.value(buffer))
        self.values[buffer] = Plain(name)
        return name

    def plain(self, value: Value) -> str:
        """The name of a value's tensor, computed now if it was deferred."""
        match value:
            case Plain():
                return value.name
            case Sum():
                return self.graph.node("Add", (value.left, value.right))
            case TensorPart():
                return self._split(value)[value.index]
            case Turned():
                return self.around.rotated(self, self.plain(value.value), value.rope)

    def _split(self, part: TensorPart) -> tuple[str, ...]:
        if part.whole not in self._splits:
            sizes = self.graph.numbers(*part.widths)
            outs = ("?",) * len(part.widths)
            self._splits[part.whole] = self.graph.nodes("Split", (part.whole, sizes), outs, axis=1)
        return self._splits[part.whole]

    def capped(self, value: str, cap: float) -> str:
        """cap * tanh(value / cap)."""
        graph = self.graph
        small = graph.node("Mul", (value, graph.scalar(1.0 / cap)))
        return graph.node("Mul", (graph.node("Tanh", (small,)), graph.scalar(cap)))

    def vector(self, weight: Weight) -> str:
        """The initialiser of a norm's weight or bias."""
        name = f"{weight.tensor}[{weight.start}:{weight.stop}]"
        return self.graph.weight(name, weights.vector(self.file, weight))

    def rotations(self, table: RopeTable) -> tuple[str, str]:
        """The initialisers of a table's cosines and sines, float32[positions, rotary_width / 2]. Raises BadGGUF."""
        names = f"cosines of {table}", f"sines of {table}"
        if names[0] not in self.graph.large:
            made = rope.rotations(table, self._table_rows, weights.rope_factors(self.file, table))
            for name, values in zip(names, made, strict=True):
                self.graph.weight(name, values)
        return names


def input_name(buffer: str) -> str:
    """The graph's input for a buffer."""
    return f"in.{buffer}"


def output_name(buffer: str) -> str:
    """The graph's output for a buffer."""
    return f"out.{buffer}"
