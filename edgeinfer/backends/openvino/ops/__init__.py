"""How OpenVINO models represent each op: one file per op, and `OpenVinoOp`, the record that each of them provides.

In: an op of a fragment. Out: a function that creates its nodes. Nothing here knows an op by name.
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
