"""The activation with a learned shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.xielu import XIELU

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: XIELU) -> list[Call]:
    call = lowering.columns(catalogue.XIELU, op.source, op.source, op.out)
    for field in ("rise", "fall", "slope", "edge"):
        call.arguments[field] = getattr(op, field)
    return [call]


OP = CpuOp(lambda *_: [catalogue.XIELU], _calls)
