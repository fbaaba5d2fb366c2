"""How an op is lowered to an ONNX graph, as declared by the files of `ops`.

In: an op of a fragment. Out: a function that appends its nodes. Independent of any particular op.
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
