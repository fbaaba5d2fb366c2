"""How ONNX graphs represent each op: one file per op, and `OnnxOp`, the record that each of them provides.

In: an op of a fragment. Out: a function that appends its nodes. Nothing here knows an op by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeinfer.backends.device_ops import DeviceOps
from edgeinfer.graph.op import Op

if TYPE_CHECKING:
    from edgeinfer.backends.onnx.lowering import OnnxLowering


@dataclass(frozen=True, slots=True)
class OnnxOp:
    """One op. `lower` appends its nodes and sets the value of its buffer; for `MatMul` it takes whole groups."""

    lower: Callable[[OnnxLowering, Any], None]
    fields: frozenset[str] = frozenset()
    why_not: Callable[[Op], str | None] | None = None


DEVICE_OPS: DeviceOps[OnnxOp] = DeviceOps("edgeinfer.backends.onnx.ops", "onnx")
