"""How an OpenVINO model has an op, as the files of `ops` say it.

In: an op of a fragment. Out: what makes its nodes. Knows no op by name.
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
    """One op. `lower` makes its nodes, and says what its buffer holds then."""

    lower: Callable[[OpenVinoLowering, Any], None]
    fields: frozenset[str] = frozenset()
    why_not: Callable[[Op], str | None] | None = None


DEVICE_OPS: DeviceOps[OpenVinoOp] = DeviceOps("edgeinfer.backends.openvino.ops", "openvino")
