"""Parts of rows joined, by tokens: a copy for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.ops.take_part import copied
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.join_parts import JoinParts

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: JoinParts) -> list[Call]:
    places = ((source, number * op.width) for number, source in enumerate(op.sources))
    return [copied(lowering, (source, 0), (op.out, first), op.width) for source, first in places]


OP = CpuOp(lambda *_: [catalogue.JOIN_HEADS], _calls)
