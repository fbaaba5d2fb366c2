"""Sums of buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvino import opset13 as op

from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.add import Add

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: Add) -> None:
    lowering.set(each.out, op.add(lowering.rows(each.out), lowering.rows(each.source)))


OP = OpenVinoOp(_lower)
