"""How the CUDA device runs each op: one file per op, and `CudaOp`, the record that each of them provides.

In: an op of a model. Out: functions from the shape of a pass to launches. Nothing here knows an op by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from edgeinfer.backends.cuda.driver import Startable
from edgeinfer.backends.cuda.step import LaunchShape
from edgeinfer.backends.device_ops import DeviceOps
from edgeinfer.graph.op import Op

if TYPE_CHECKING:
    from edgeinfer.backends.cuda.lowering import CudaLowering

Call: TypeAlias = Callable[[LaunchShape], Startable]


@dataclass(frozen=True, slots=True)
class CudaOp:
    """One op. `calls` returns its launches, in order."""

    calls: Callable[[CudaLowering, Any], list[Call]]
    fields: frozenset[str] = frozenset()
    why_not: Callable[[Op], str | None] | None = None


DEVICE_OPS: DeviceOps[CudaOp] = DeviceOps("edgeinfer.backends.cuda.ops", "cuda")
