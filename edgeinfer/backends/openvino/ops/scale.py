"""Scaled values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from openvino import opset13 as op

from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.scale import Scale

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: Scale) -> None:
    factor = op.constant(np.full((1, 1, 1), each.factor, np.float32))
    lowering.set(each.value, op.multiply(lowering.rows(each.value), factor))


OP = OpenVinoOp(_lower)
