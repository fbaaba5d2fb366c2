"""Capped values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from openvino import opset13 as op

from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.soft_cap import SoftCap

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: SoftCap) -> None:
    cap = op.constant(np.full((1, 1, 1), each.cap, np.float32))
    lowering.set(each.value, op.multiply(op.tanh(op.divide(lowering.rows(each.value), cap)), cap))


OP = OpenVinoOp(_lower)
