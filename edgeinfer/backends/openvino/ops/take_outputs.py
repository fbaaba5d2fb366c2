"""The rows whose logits are requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvino import opset13 as op

from edgeinfer.backends.openvino.nodes import numbers
from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.take_outputs import TakeOutputs

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: TakeOutputs) -> None:
    lowering.set(each.out, op.gather(lowering.rows(each.source), lowering.parameters["outputs"], numbers(1)))


OP = OpenVinoOp(_lower)
