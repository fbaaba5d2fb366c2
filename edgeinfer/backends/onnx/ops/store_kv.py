"""Keys and values of new tokens, which the attention of their layer absorbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.store_kv import StoreKV

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: StoreKV) -> None:
    lowering.stored[op.layer] = lowering.value(op.key), lowering.value(op.value)


OP = OnnxOp(_lower)
