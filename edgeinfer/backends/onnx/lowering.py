"""From the ops of a fragment to an ONNX graph.

In: a fragment and its file. Out: nodes and initialisers in a `Graph`. Buffers are two-dimensional, [rows, width]; what
a buffer holds is put off as long as it may become part of a larger operator (`values`). Knows no sessions and no cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from edgeinfer.backends import weights
from edgeinfer.backends.base import Progress
from edgeinfer.backends.onnx import matrices
from edgeinfer.backends.onnx.graph import CONTRIB, FLOAT, Graph
from edgeinfer.backends.onnx.grouping import Product, joined
from edgeinfer.backends.onnx.matrices import BlockForm
from edgeinfer.backends.onnx.values import Part, Plain, Sum, Turned, Value
from edgeinfer.errors import UnsupportedModel
from edgeinfer.models import rope
from edgeinfer.models.fragment import Fragment
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import BlockFormat
from edgeinfer.ops import (
    Act,
    Activation,
    Add,
    Attention,
    Embed,
    GatedAct,
    LayerNorm,
    Op,
    PositionEmbed,
    RMSNorm,
    Rope,
    RopeTable,
    SoftCap,
    StoreKV,
    TakeOutputs,
    Weight,
)

INT8_ACTIVATIONS = 4
"""MatMulNBits's accuracy level at which inputs are rounded to int8 per block."""


class Surroundings(Protocol):
    """What differs between our own lanes and graphs for other programs: tokens, attention, what is put out."""

    def embedded(self, lowering: Lowering, op: Embed) -> str: ...

    def placed(self, lowering: Lowering, value: str, op: PositionEmbed) -> str: ...

    def attended(self, lowering: Lowering, op: Attention, key: Value, value: Value) -> str: ...

    def rotated(self, lowering: Lowering, value: str, op: Rope) -> str: ...

    def taken(self, lowering: Lowering, value: str) -> str: ...


class Lowering:
    """One fragment on its way into a graph.

    `packed_bytes`: what the runtime will hold for packed weights beside their initialisers.
    """

    def __init__(self, graph: Graph, file: GGUFFile, around: Surroundings, table_rows: int) -> None:
        self.graph, self.file = graph, file
        self._around, self._table_rows = around, table_rows
        self.packed_bytes = 0
        self._values: dict[str, Value] = {}
        self._stored: dict[int, tuple[Value, Value]] = {}
        self._splits: dict[str, tuple[str, ...]] = {}
        self._sums: dict[tuple[str, int], str] = {}

    def lower(self, fragment: Fragment, progress: Progress) -> Mapping[str, str]:
        """Append all ops; the names of the output buffers' tensors. Raises UnsupportedModel."""
        for name in fragment.inputs:
            width = fragment.spec.buffer(name).width
            self._values[name] = Plain(self.graph.input(input_name(name), FLOAT, ("rows." + name, width)))
        stages = fragment.spec.stages
        for done, stage in enumerate(stages):
            for op in joined(stage.ops, self.file.tensors):
                self._lower_product(op) if isinstance(op, Product) else self._lower(op)
            progress("loading weights", done + 1, len(stages))
        if self._stored:
            raise UnsupportedModel(f"keys of layer {min(self._stored)} are stored where no attention reads them")
        return {name: self.tensor(name) for name in fragment.outputs}

    def _lower(self, op: Op) -> None:
        graph, values = self.graph, self._values
        match op:
            case Embed():
                values[op.out] = Plain(self._around.embedded(self, op))
            case PositionEmbed():
                values[op.out] = Plain(self._around.placed(self, self.tensor(op.out), op))
            case LayerNorm():
                inputs = (self.tensor(op.source), self.vector(op.weight), self.vector(op.bias))
                values[op.out] = Plain(graph.node("LayerNormalization", inputs, axis=-1, epsilon=op.epsilon))
            case RMSNorm():
                self._norm(op)
            case Rope():
                inner = self._value(op.value)
                values[op.value] = Turned(inner if not isinstance(inner, Turned) else Plain(self.plain(inner)), op)
            case StoreKV():
                self._stored[op.layer] = self._value(op.key), self._value(op.value)
            case Attention():
                if op.layer not in self._stored:
                    raise UnsupportedModel(f"attention of layer {op.layer} stands where no keys are stored for it")
                values[op.out] = Plain(self._around.attended(self, op, *self._stored.pop(op.layer)))
            case GatedAct():
                gate, up = self.tensor(op.gate), self.tensor(op.up)
                values[op.out] = Plain(graph.node("Mul", (self._activated(op.activation, gate), up)))
            case Act():
                values[op.out] = Plain(self._activated(op.activation, self.tensor(op.source)))
            case Add():
                values[op.out] = Sum(self.tensor(op.out), self.tensor(op.source))
            case TakeOutputs():
                values[op.out] = Plain(self._around.taken(self, self.tensor(op.source)))
            case SoftCap():
                values[op.value] = Plain(self.capped(self.tensor(op.value), op.cap))

    def _value(self, buffer: str) -> Value:
        if buffer not in self._values:
            raise UnsupportedModel(
                f"buffer {buffer} is read before anything is in it; make it an input of the fragment"
            )
        return self._values[buffer]

    def value(self, buffer: str) -> Value:
        """What a buffer holds now. Raises UnsupportedModel where that is nothing."""
        return self._value(buffer)

    def tensor(self, buffer: str) -> str:
        """The name of the tensor that a buffer holds, computed if it was put off."""
        name = self.plain(self._value(buffer))
        self._values[buffer] = Plain(name)
        return name

    def plain(self, value: Value) -> str:
        """The name of a value's tensor, computed if it was put off."""
        match value:
            case Plain():
                return value.name
            case Sum():
                return self.graph.node("Add", (value.left, value.right))
            case Part():
                return self._split(value)[value.index]
            case Turned():
                return self._around.rotated(self, self.plain(value.value), value.rope)

    def _split(self, part: Part) -> tuple[str, ...]:
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

    def _activated(self, activation: Activation, gate: str) -> str:
        graph = self.graph
        match activation:
            case "silu":
                return graph.contrib("QuickGelu", (gate,), alpha=1.0)
            case "gelu_tanh":
                return graph.node("Gelu", (gate,), approximate="tanh")
            case "relu":
                return graph.node("Relu", (gate,))
            case "relu2":
                positive = graph.node("Relu", (gate,))
                return graph.node("Mul", (positive, positive))

    def _norm(self, op: RMSNorm) -> None:
        """A norm, which takes in a sum that was put off, and gives it to its buffer."""
        graph, source = self.graph, self._value(op.source)
        weight = self.vector(op.weight)
        if isinstance(source, Sum) and op.groups == 1:
            inputs = (source.left, source.right, weight)
            kind = "SkipSimplifiedLayerNormalization"
            outs = graph.nodes(kind, inputs, ("?", "", "", "?"), domain=CONTRIB, epsilon=op.epsilon)
            self._values[op.source] = Plain(outs[3])
            self._values[op.out] = Plain(outs[0])
            return
        value = self.tensor(op.source)
        value = graph.reshape(value, -1, op.groups, op.width) if op.groups > 1 else value
        kind = "SimplifiedLayerNormalization"
        normed = graph.node(kind, (value, weight), axis=-1, epsilon=op.epsilon, stash_type=1)
        normed = graph.reshape(normed, -1, op.groups * op.width) if op.groups > 1 else normed
        self._values[op.out] = Plain(normed)

    def _lower_product(self, product: Product) -> None:
        """Products of one source; what is added to a buffer is put off."""
        first = product.ops[0]
        out = self._multiplied(product, self.tensor(first.source))
        if first.accumulate:
            held = first.out in self._values
            self._values[first.out] = Sum(self.tensor(first.out), out) if held else Plain(out)
        elif len(product.ops) == 1:
            self._values[first.out] = Plain(out)
        else:
            for index, op in enumerate(product.ops):
                self._values[op.out] = Part(out, index, product.heights)

    def _multiplied(self, product: Product, source: str) -> str:
        graph, parts = self.graph, product.weights
        name = " ".join(f"{part.tensor}[{part.start}:{part.stop}]" for part in parts)
        bias = self._bias(name, product)
        if not isinstance(product.form, BlockForm) or not isinstance(product.source, BlockFormat):
            values = graph.weight(name, matrices.floats(self.file, parts))
            return graph.node("Gemm", (source, values, *([bias] if bias else [])), transB=1)
        packed = matrices.blocks(self.file, parts, product.source, product.form)
        self.packed_bytes += packed.scales.nbytes
        inputs = [source, graph.weight(f"{name}.codes", packed.codes), graph.weight(f"{name}.scales", packed.scales)]
        out = graph.contrib(
            "MatMulNBits",
            [*inputs, "", "", bias] if bias else inputs,
            K=parts[0].columns,
            N=sum(product.heights),
            bits=packed.form.bits,
            block_size=packed.form.block,
            accuracy_level=INT8_ACTIVATIONS,
        )
        if packed.minimums is None:
            return out
        minimums = graph.weight(f"{name}.minimums", packed.minimums)
        return graph.node("Gemm", (self._block_sums(source, parts[0].columns, packed.form.block), minimums, out))

    def _bias(self, name: str, product: Product) -> str:
        """The initialiser of the biases, "" where there are none."""
        if not product.biases:
            return ""
        values = np.concatenate([weights.vector(self.file, bias) for bias in product.biases])
        return self.graph.weight(f"{name}.bias", values)

    def _block_sums(self, source: str, columns: int, block: int) -> str:
        """Sums of blocks of a product's input, [rows, columns / block]; once for all products that read it."""
        if (source, block) not in self._sums:
            cut = self.graph.reshape(source, -1, columns // block, block)
            self._sums[source, block] = self.graph.node("ReduceSum", (cut, self.graph.numbers(2)), keepdims=0)
        return self._sums[source, block]

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
