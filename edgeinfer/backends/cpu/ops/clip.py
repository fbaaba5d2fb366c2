"""Values between two limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.clip import Clip

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: Clip) -> list[Call]:
    call = lowering.columns(catalogue.CLIP, op.value, op.value, op.value)
    call.arguments["least"], call.arguments["most"] = -op.limit, op.limit
    return [call]


OP = CpuOp(lambda *_: [catalogue.CLIP], _calls)
