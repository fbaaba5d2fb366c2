"""Activated gates times the up projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvino import opset13 as op

from edgeinfer.backends.openvino.nodes import activated
from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.gated_act import GatedAct

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: GatedAct) -> None:
    gate = activated(each.activation, lowering.rows(each.gate))
    lowering.set(each.out, op.multiply(gate, lowering.rows(each.up)))


OP = OpenVinoOp(_lower)
