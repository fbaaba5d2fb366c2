"""From the ops of a fragment to an OpenVINO model: every op as nodes, every weight as compressed constants.

In: a fragment and its file. Out: a `Graph`: the model and what its inputs and outputs are. Values are float32[1, T, W]
as rows, or float32[1, heads, T, K] between the ops of attention. Embeddings are looked up outside, so their rows are
inputs. Knows nothing of devices, steps or what is done with the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import openvino as ov
from openvino import Node
from openvino import opset13 as op

from edgeinfer.backends import weights
from edgeinfer.backends.base import Progress
from edgeinfer.backends.openvino.attention import Caches
from edgeinfer.backends.openvino.constants import store
from edgeinfer.backends.openvino.nodes import indices, matrix, numbers, parameter
from edgeinfer.backends.openvino.signature import Signature, mask_name, rope_name, signature_of
from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.fragment import Fragment
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.quants import format_of
from edgeinfer.ops import (
    Act,
    Activation,
    Add,
    Attention,
    Embed,
    GatedAct,
    LayerNorm,
    MatMul,
    Op,
    PositionEmbed,
    RMSNorm,
    Rope,
    SoftCap,
    StoreKV,
    TakeOutputs,
    Weight,
)


@dataclass(slots=True)
class Value:
    """A buffer's present value as rows float32[1, T, W], or split into heads, float32[1, heads, T, K]; or both."""

    rows: Node | None = None
    heads: Node | None = None
    sums: dict[tuple[int, int], Node] = field(default_factory=dict)


class Lowering:
    """Nodes of one fragment, made op by op."""

    def __init__(self, fragment: Fragment, file: GGUFFile) -> None:
        self._fragment, self._file = fragment, file
        self.signature: Signature = signature_of(fragment)
        self.parameters = {name: parameter(name, shape, is_index) for name, shape, is_index in self.signature.inputs}
        self.caches = Caches(fragment.spec.kv, self.parameters)
        self._values = {name: Value(self.parameters[name]) for name in fragment.inputs}
        self._matrices: dict[Weight, Node] = {}

    def model(self, progress: Progress) -> ov.Model:
        """All ops as one model."""
        ops = list(self._fragment.spec.ops())
        for done, each in enumerate(ops):
            self._lower(each)
            progress("building the graph", done + 1, len(ops))
        results = [op.result(self._rows(name), f"out.{name}") for name in self._fragment.outputs]
        return ov.Model(results, self.caches.sinks, list(self.parameters.values()), "edgeinfer")

    def _lower(self, each: Op) -> None:
        match each:
            case Embed():
                self._values[each.out] = Value(self.parameters[f"embed.{each.out}"])
            case PositionEmbed():
                if f"embed.{each.out}" not in self.parameters:
                    raise UnsupportedModel("learned positions stand in another part than the embedding they belong to")
            case LayerNorm():
                self._set(each.out, self._layer_normed(each))
            case RMSNorm():
                self._set(each.out, self._normed(each))
            case MatMul():
                self._multiply(each)
            case Rope():
                rotated = self._rotated(each)
                self._values[each.value] = Value(heads=rotated)
            case StoreKV():
                key = self._heads(each.key, each.kv_heads, each.head_width)
                self.caches.append(each, key, self._heads(each.value, each.kv_heads, each.head_width))
            case Attention():
                query = self._heads(each.query, each.heads, each.head_width)
                mask = self.parameters[mask_name(each.window)]
                self._values[each.out] = Value(heads=self.caches.attend(each, query, mask))
            case GatedAct():
                act = _activated(each.activation, self._rows(each.gate))
                self._set(each.out, op.multiply(act, self._rows(each.up)))
            case Act():
                self._set(each.out, _activated(each.activation, self._rows(each.source)))
            case Add():
                self._set(each.out, op.add(self._rows(each.out), self._rows(each.source)))
            case TakeOutputs():
                taken = op.gather(self._rows(each.source), self.parameters["outputs"], numbers(1))
                self._set(each.out, taken)
            case SoftCap():
                cap = op.constant(np.full((1, 1, 1), each.cap, np.float32))
                self._set(each.value, op.multiply(op.tanh(op.divide(self._rows(each.value), cap)), cap))

    def _set(self, name: str, rows: Node) -> None:
        self._values[name] = Value(rows)

    def _value(self, name: str) -> Value:
        if name not in self._values:
            raise UnsupportedModel(f"a part of {self._fragment.spec.name} reads {name}, which nothing gives it")
        return self._values[name]

    def _rows(self, name: str) -> Node:
        """A buffer's value as rows."""
        value = self._value(name)
        if value.rows is None:
            joined = op.transpose(value.heads, indices(0, 2, 1, 3))
            value.rows = op.reshape(joined, indices(0, 0, -1), True)
        return value.rows

    def _heads(self, name: str, heads: int, width: int) -> Node:
        """A buffer's value as float32[1, heads, T, width]."""
        value = self._value(name)
        if value.heads is None:
            split = op.reshape(value.rows, indices(0, 0, heads, width), True)
            value.heads = op.transpose(split, indices(0, 2, 1, 3))
        return value.heads

    def _normed(self, each: RMSNorm) -> Node:
        weight = weights.vector(self._file, each.weight)
        if each.groups == 1:
            return _rms_norm(self._rows(each.source), weight.reshape(1, 1, -1), each.epsilon)
        split = op.reshape(self._rows(each.source), indices(0, 0, each.groups, each.width), True)
        normed = _rms_norm(split, weight.reshape(1, 1, 1, -1), each.epsilon)
        return op.reshape(normed, indices(0, 0, -1), True)

    def _layer_normed(self, each: LayerNorm) -> Node:
        weight, bias = (weights.vector(self._file, part).reshape(1, 1, -1) for part in (each.weight, each.bias))
        normed = op.mvn(self._rows(each.source), indices(-1), True, each.epsilon, "inside_sqrt")
        return op.add(op.multiply(normed, op.constant(weight)), op.constant(bias))

    def _multiply(self, each: MatMul) -> None:
        info = self._file.tensors[each.weight.tensor]
        form = format_of(info.ggml_type)
        if each.weight not in self._matrices:
            raw = weights.raw_rows(self._file, each.weight)
            self._matrices[each.weight] = matrix(store(raw, form, each.weight.columns))
        columns = self._matrices[each.weight].get_output_shape(0)[1]
        product = op.matmul(self._with_sums(each, columns), self._matrices[each.weight], False, True)
        if each.bias is not None:
            bias = weights.vector(self._file, each.bias)
            product = op.add(product, op.constant(bias.reshape(1, 1, -1)))
        if each.accumulate and each.out in self._values:
            product = op.add(self._rows(each.out), product)
        self._set(each.out, product)

    def _with_sums(self, each: MatMul, columns: int) -> Node:
        """What a product reads: its source, followed by the sums of groups where the matrix has columns for them."""
        source, own = self._rows(each.source), each.weight.columns
        if columns == own:
            return source
        form = format_of(self._file.tensors[each.weight.tensor].ggml_type)
        group = form.group  # type: ignore[union-attr]
        value = self._value(each.source)
        if (columns, group) not in value.sums:
            n_sums = own // group
            grouped = op.reshape(source, indices(0, 0, n_sums, group), True)
            sums = op.reduce_sum(grouped, indices(3), False)
            missing = columns - own - n_sums
            if missing:
                sums = op.pad(sums, indices(0, 0, 0), indices(0, 0, missing), "constant", numbers(0.0))
            value.sums[columns, group] = op.concat([source, sums], 2)
        return value.sums[columns, group]

    def _rotated(self, each: Rope) -> Node:
        """Half-split rotation, value * cos + (-second half, first half) * sin, in the form that OpenVINO recognises."""
        value = self._heads(each.value, each.heads, each.head_width)
        number, width, rest = self.signature.tables.index(each.table), each.table.rotary_width, None
        if width < each.head_width:
            value, rest = op.variadic_split(value, numbers(3), indices(width, each.head_width - width)).outputs()
        first, second = op.variadic_split(value, numbers(3), indices(width // 2, width // 2)).outputs()
        swapped = op.concat([op.multiply(second, op.constant(np.full((1, 1, 1, 1), -1, np.float32))), first], -1)
        along = op.multiply(value, self.parameters[rope_name(number, "cos")])
        turned = op.add(along, op.multiply(swapped, self.parameters[rope_name(number, "sin")]))
        return turned if rest is None else op.concat([turned, rest], -1)


def _activated(activation: Activation, source: Node) -> Node:
    match activation:
        case "silu":
            return op.swish(source)
        case "gelu_tanh":
            return op.gelu(source, "tanh")
        case "relu":
            return op.relu(source)
        case "relu2":
            positive = op.relu(source)
            return op.multiply(positive, positive)


def _rms_norm(source: Node, weight: np.ndarray[tuple[int, ...], np.dtype[np.float32]], epsilon: float) -> Node:
    """The form that OpenVINO recognises as RMS norm, over the last axis."""
    ones = [1] * weight.ndim
    square = op.power(source, op.constant(np.full(ones, 2, np.float32)))
    mean = op.reduce_mean(square, op.constant(np.array([-1], np.int32)), True)
    root = op.sqrt(op.add(mean, op.constant(np.full(ones, epsilon, np.float32))))
    inverse = op.divide(op.constant(np.full(ones, 1, np.float32)), root)
    return op.multiply(op.multiply(inverse, source), op.constant(weight))
