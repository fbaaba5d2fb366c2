"""LayerNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvino import Node
from openvino import opset13 as op

from edgeinfer.backends import weights
from edgeinfer.backends.openvino.nodes import indices
from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.layer_norm import LayerNorm

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: LayerNorm) -> None:
    lowering.set(each.out, _normed(lowering, each))


def _normed(lowering: OpenVinoLowering, each: LayerNorm) -> Node:
    normed = op.mvn(lowering.rows(each.source), indices(-1), True, each.epsilon, "inside_sqrt")
    if each.weight is not None:
        normed = op.multiply(normed, _constant(lowering, each.weight))
    return normed if each.bias is None else op.add(normed, _constant(lowering, each.bias))


def _constant(lowering: OpenVinoLowering, weight: Weight) -> Node:
    return op.constant(weights.vector(lowering.file, weight).reshape(1, 1, -1))


OP = OpenVinoOp(_lower)
