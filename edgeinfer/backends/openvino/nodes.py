"""Small pieces of OpenVINO graphs: constants, inputs, activations, and a stored matrix as plugins keep it compressed.

In: numbers and `StoredMatrix` arrays. Out: nodes. Constants own their memory, so the caller need not keep anything
alive.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import Node
from openvino import opset13 as op

from edgeinfer.backends.openvino.constants import StoredMatrix
from edgeinfer.graph.activations import Activation

TYPES = {"u4": ov.Type.u4, "u8": ov.Type.u8, "f16": ov.Type.f16, "bf16": ov.Type.bf16, "f32": ov.Type.f32}


def indices(*values: int) -> ov.Node:
    """int64[n]."""
    return op.constant(np.array(values, np.int64))


def numbers(value: float) -> ov.Node:
    """A scalar: int32 for an integer, float32 for a float."""
    return op.constant(np.array(value, np.int32 if isinstance(value, int) else np.float32))


def parameter(name: str, shape: tuple[int, ...], is_index: bool) -> ov.Node:
    """An input: int32 or float32, with -1 for dynamic dimensions."""
    node = op.parameter(list(shape), ov.Type.i32 if is_index else ov.Type.f32, name)
    node.output(0).set_names({name})
    return node


def constant(contents: NDArray[np.generic], shape: tuple[int, ...], kind: str) -> ov.Node:
    """A constant of any of TYPES with these bytes."""
    tensor = ov.Tensor(TYPES[kind], ov.Shape(list(shape)))
    tensor.data.reshape(-1).view(np.uint8)[:] = np.ascontiguousarray(contents).reshape(-1).view(np.uint8)
    return op.constant(tensor)


def matrix(stored: StoredMatrix) -> ov.Node:
    """float32[N, K'] of a matrix: (codes - zero point) * scale, which plugins keep as codes."""
    form, n_rows = stored.form, stored.n_rows
    columns = stored.columns + form.sum_columns(stored.columns)
    if not form.group:
        values = constant(stored.codes, (n_rows, columns), form.code)
        return values if form.code == "f32" else op.convert(values, ov.Type.f32)
    assert stored.scale is not None
    assert stored.zero is not None
    kind = TYPES[form.scale]
    shape = (n_rows, columns // form.group, form.group)
    codes = op.convert(constant(stored.codes, shape, form.code), kind)
    if form.has_sums:
        zero = constant(stored.zero, (*shape[:2], 1), form.code)
    else:
        zero = constant(stored.zero, (1, 1, 1), "u8")
    scaled = op.multiply(
        op.subtract(codes, op.convert(zero, kind)), constant(stored.scale, (*shape[:2], 1), form.scale)
    )
    whole = op.reshape(scaled, indices(n_rows, columns), False)
    return whole if form.scale == "f32" else op.convert(whole, ov.Type.f32)


def activated(activation: Activation, source: Node) -> Node:
    """activation(source)."""
    match activation:
        case "silu":
            return op.swish(source)
        case "gelu_tanh":
            return op.gelu(source, "tanh")
        case "relu":
            return op.relu(source)
        case "gelu":
            return op.gelu(source, "erf")
        case "sigmoid":
            return op.sigmoid(source)
        case "softplus":
            return op.softplus(source)
        case "gelu_quick":
            return op.swish(source, numbers(1.702))
        case "relu2":
            positive = op.relu(source)
            return op.multiply(positive, positive)
