"""RMSNorm of heads or whole rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from openvino import Node
from openvino import opset13 as op

from edgeinfer.backends import weights
from edgeinfer.backends.openvino.nodes import indices
from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.rms_norm import RMSNorm

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: RMSNorm) -> None:
    lowering.set(each.out, _normed(lowering, each))


def _normed(lowering: OpenVinoLowering, each: RMSNorm) -> Node:
    ones = np.ones(each.width, np.float32)
    weight = ones if each.weight is None else weights.vector(lowering.file, each.weight)
    if each.groups == 1:
        return _rms_norm(lowering.rows(each.source), weight.reshape(1, 1, -1), each.epsilon)
    split = op.reshape(lowering.rows(each.source), indices(0, 0, each.groups, each.width), True)
    normed = _rms_norm(split, weight.reshape(1, 1, 1, -1), each.epsilon)
    return op.reshape(normed, indices(0, 0, -1), True)


def _rms_norm(source: Node, weight: np.ndarray[tuple[int, ...], np.dtype[np.float32]], epsilon: float) -> Node:
    """The form that OpenVINO recognises as RMSNorm, over the last axis."""
    ones = [1] * weight.ndim
    square = op.power(source, op.constant(np.full(ones, 2, np.float32)))
    mean = op.reduce_mean(square, op.constant(np.array([-1], np.int32)), True)
    root = op.sqrt(op.add(mean, op.constant(np.full(ones, epsilon, np.float32))))
    inverse = op.divide(op.constant(np.full(ones, 1, np.float32)), root)
    return op.multiply(op.multiply(inverse, source), op.constant(weight))


OP = OpenVinoOp(_lower, frozenset({"groups"}))
