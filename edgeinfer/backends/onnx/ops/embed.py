"""Embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.onnx.lowering import Plain
from edgeinfer.backends.onnx.ops import OnnxOp
from edgeinfer.graph.ops.embed import Embed

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


def _lower(lowering: OnnxLowering, op: Embed) -> None:
    lowering.values[op.out] = Plain(lowering.around.embedded(lowering, op))


OP = OnnxOp(_lower, frozenset({"scale"}))
