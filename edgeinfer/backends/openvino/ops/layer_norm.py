"""LayerNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvino import Node
from openvino import opset13 as op

from edgeinfer.backends import weights
from edgeinfer.backends.openvino.nodes import indices
from edgeinfer.backends.openvino.op import OpenVinoOp
from edgeinfer.graph.ops.layer_norm import LayerNorm

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import Lowering


def _lower(lowering: Lowering, each: LayerNorm) -> None:
    lowering.set(each.out, _normed(lowering, each))


def _normed(lowering: Lowering, each: LayerNorm) -> Node:
    weight, bias = (weights.vector(lowering.file, part).reshape(1, 1, -1) for part in (each.weight, each.bias))
    normed = op.mvn(lowering.rows(each.source), indices(-1), True, each.epsilon, "inside_sqrt")
    return op.add(op.multiply(normed, op.constant(weight)), op.constant(bias))


OP = OpenVinoOp(_lower)
