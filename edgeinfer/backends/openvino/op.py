"""How an op is lowered to an OpenVINO model, as declared by the files of `ops`.

In: an op of a fragment. Out: a function that creates its nodes. Independent of any particular op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeinfer.backends.device_ops import DeviceOps
from edgeinfer.graph.op import Op

if TYPE_CHECKING:
    from edgeinfer.backends.openvino.graph import OpenVinoLowering


@dataclass(frozen=True, slots=True)
class OpenVinoOp:
    """One op. `lower` creates its nodes and sets the value of its buffer."""

    lower: Callable[[OpenVinoLowering, Any], None]
    fields: frozenset[str] = frozenset()
    why_not: Callable[[Op], str | None] | None = None


DEVICE_OPS: DeviceOps[OpenVinoOp] = DeviceOps("edgeinfer.backends.openvino.ops", "openvino")
