"""Heads concatenated from two parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openvino import opset13 as op

from edgeinfer.backends.openvino.nodes import indices
from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.join_heads import JoinHeads

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: JoinHeads) -> None:
    first = lowering.heads(each.first, each.heads, each.first_width)
    second = lowering.heads(each.second, 1 if each.shared else each.heads, each.second_width)
    if each.shared:
        second = op.broadcast(second, indices(1, each.heads, 1, 1), broadcast_spec="BIDIRECTIONAL")
    lowering.set_heads(each.out, op.concat([first, second], -1))


OP = OpenVinoOp(_lower, frozenset({"shared"}))
