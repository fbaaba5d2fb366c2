"""What a LoRA adapter adds, at the scale it was loaded with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from openvino import opset13 as op

from edgeinfer.backends.openvino.ops import OpenVinoOp
from edgeinfer.graph.ops.add_scaled import AddScaled

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


def _lower(lowering: OpenVinoLowering, each: AddScaled) -> None:
    factor = op.constant(np.full((1, 1, 1), each.scale * each.factor, np.float32))
    lowering.set(each.out, op.add(lowering.rows(each.out), op.multiply(lowering.rows(each.source), factor)))


OP = OpenVinoOp(_lower)
