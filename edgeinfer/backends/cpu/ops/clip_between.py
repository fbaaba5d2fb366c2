"""Values between two numbers of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.padding import LANES
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.clip_between import ClipBetween

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: ClipBetween) -> list[Call]:
    call = lowering.columns(catalogue.CLIP, op.source, op.source, op.out)
    for name, weight in (("least", op.least), ("most", op.most)):
        call.arguments[name] = lowering.buffers.vector(weight, LANES)[0]
    return [call]


OP = CpuOp(lambda *_: [catalogue.CLIP], _calls)
