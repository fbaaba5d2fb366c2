"""An ONNX graph under construction: nodes, inputs, outputs and initialisers by name, and activations as nodes.

In: operators and arrays. Out: a small ONNX model, and separately the large arrays, which are never put in a protobuf
(limited to 2 GB). Independent of models; runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from edgeinfer.graph.activations import Activation

OPSET = 21
CONTRIB = "com.microsoft"
IR_VERSION = 10
FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.uint8): TensorProto.UINT8}
MEMORY = "in memory"
"""The nominal location of initialisers that are passed separately from the model."""

Array = NDArray[np.generic]
Dimension = int | str
Attribute = int | float | str | tuple[int, ...]


class OnnxGraph:
    """The graph generates all names except those of its inputs, outputs and large initialisers."""

    def __init__(self) -> None:
        self.large: dict[str, Array] = {}
        self._nodes: list[NodeProto] = []
        self._small: dict[str, TensorProto] = {}
        self._inputs: dict[str, ValueInfoProto] = {}
        self._outputs: dict[str, ValueInfoProto] = {}

    def input(self, name: str, element: int, shape: Sequence[Dimension]) -> str:
        """An input of the graph; a repeated name returns the same input."""
        self._inputs.setdefault(name, helper.make_tensor_value_info(name, element, list(shape)))
        return name

    def output(self, name: str, element: int, shape: Sequence[Dimension]) -> str:
        """An output of the graph, written by some node."""
        self._outputs[name] = helper.make_tensor_value_info(name, element, list(shape))
        return name

    def weight(self, name: str, values: Array) -> str:
        """An initialiser passed separately from the model; the first one with a name counts."""
        self.large.setdefault(name, np.ascontiguousarray(values))
        return name

    def numbers(self, *values: int) -> str:
        """int64[len(values)] as an initialiser."""
        name = "numbers." + ".".join(map(str, values))
        self._small.setdefault(name, numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def whole(self, value: int) -> str:
        """An int64 scalar as an initialiser."""
        name = f"whole.{value}"
        self._small.setdefault(name, numpy_helper.from_array(np.array(value, np.int64), name))
        return name

    def scalar(self, value: float) -> str:
        """A float32 scalar as an initialiser."""
        name = f"scalar.{float(value)!r}"
        self._small.setdefault(name, numpy_helper.from_array(np.array(value, np.float32), name))
        return name

    def node(
        self, kind: str, inputs: Sequence[str], *, domain: str = "", out: str = "", **attributes: Attribute
    ) -> str:
        """Append an operator with one output and give the output's name."""
        return self.nodes(kind, inputs, (out or self._fresh(kind),), domain=domain, **attributes)[0]

    def contrib(self, kind: str, inputs: Sequence[str], **attributes: Attribute) -> str:
        """Append one of ONNX Runtime's own operators with one output and give the output's name."""
        return self.node(kind, inputs, domain=CONTRIB, out="", **attributes)

    def nodes(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str = "", **attributes: Attribute
    ) -> tuple[str, ...]:
        """Append an operator with these outputs: "" for an unused one, "?" for a generated name."""
        named = tuple(self._fresh(f"{kind}.{i}") if out == "?" else out for i, out in enumerate(outputs))
        node = helper.make_node(kind, list(inputs), list(named), f"{kind}.{len(self._nodes)}", domain=domain)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return named

    def reshape(self, value: str, *shape: int) -> str:
        """A value in another shape; -1 at most once, for the inferred dimension."""
        return self.node("Reshape", (value, self.numbers(*shape)))

    def model(self, location: str = MEMORY, places: dict[str, tuple[int, int]] | None = None) -> Any:
        """The model with its large initialisers stored at `location`; `places` gives the offset and length of each."""
        initialisers = [*self._small.values()]
        for name, array in self.large.items():
            offset, length = (0, array.nbytes) if places is None else places[name]
            initialisers.append(_external(name, array, location, offset, length))
        graph = helper.make_graph(
            self._nodes, "edgeinfer", [*self._inputs.values()], [*self._outputs.values()], initialisers
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        model: ModelProto = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgeinfer"
        )
        return model

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(self._inputs)

    def _fresh(self, kind: str) -> str:
        return f"{kind}:{len(self._nodes)}"


def _external(name: str, array: Array, location: str, offset: int, length: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TYPES[array.dtype], dims=array.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def activated(graph: OnnxGraph, activation: Activation, gate: str) -> str:
    """The name of the tensor activation(gate)."""
    match activation:
        case "silu":
            return graph.contrib("QuickGelu", (gate,), alpha=1.0)
        case "gelu_quick":
            return graph.contrib("QuickGelu", (gate,), alpha=1.702)
        case "gelu_tanh":
            return graph.node("Gelu", (gate,), approximate="tanh")
        case "relu":
            return graph.node("Relu", (gate,))
        case "gelu":
            return graph.node("Gelu", (gate,))
        case "sigmoid":
            return graph.node("Sigmoid", (gate,))
        case "softplus":
            return graph.node("Softplus", (gate,))
        case "relu2":
            positive = graph.node("Relu", (gate,))
            return graph.node("Mul", (positive, positive))
