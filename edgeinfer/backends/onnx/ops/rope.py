"""Rotary position embedding, which is deferred: attention may absorb it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Plain, Turned
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.rope import Rope

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: Rope) -> None:
    inner = lowering.value(op.value)
    inner = Plain(lowering.plain(inner)) if isinstance(inner, Turned) else inner
    lowering.values[op.value] = Turned(inner, op)


OP = OnnxOp(_lower)
