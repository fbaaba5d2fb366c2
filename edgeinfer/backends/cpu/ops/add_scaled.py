"""Sums in which each row has a factor of its own, from the step record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.add_scaled import AddScaled

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: AddScaled) -> list[Call]:
    call = lowering.columns(catalogue.ADD_SCALED, op.source, op.source, op.out, op.factor)
    call.arguments["other"] = lowering.step.scales_at(op.adapter, lowering.buffers.rows(op.out))
    call.arguments["count"] = lowering.buffers.count(op.source)  # no rows if the pass does not use the adapter
    return [call]


OP = CpuOp(lambda *_: [catalogue.ADD_SCALED], _calls)
