"""Rotary position embedding, in the form that OpenVINO recognises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from openvino import Node
from openvino import opset13 as op

from edgeinfer.backends.openvino.feeding import rope_name
from edgeinfer.backends.openvino.nodes import indices, numbers
from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.rope import Rope

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: Rope) -> None:
    lowering.set_heads(each.value, _rotated(lowering, each))


def _rotated(lowering: OpenVinoLowering, each: Rope) -> Node:
    """Half-split rotation, value * cos + (-second half, first half) * sin, in the form that OpenVINO recognises."""
    value = lowering.heads(each.value, each.heads, each.head_width)
    number, width, rest = lowering.signature.tables.index(each.table), each.table.rotary_width, None
    if width < each.head_width:
        value, rest = op.variadic_split(value, numbers(3), indices(width, each.head_width - width)).outputs()
    first, second = op.variadic_split(value, numbers(3), indices(width // 2, width // 2)).outputs()
    swapped = op.concat([op.multiply(second, op.constant(np.full((1, 1, 1, 1), -1, np.float32))), first], -1)
    along = op.multiply(value, lowering.parameters[rope_name(number, "cos")])
    turned = op.add(along, op.multiply(swapped, lowering.parameters[rope_name(number, "sin")]))
    return turned if rest is None else op.concat([turned, rest], -1)


OP = OpenVinoOp(_lower)
