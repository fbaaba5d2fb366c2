"""Multiplication by a constant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.scale import Scale

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: Scale) -> list[Call]:
    return [lowering.columns(catalogue.SCALE, op.value, op.value, op.value, op.factor)]


OP = CpuOp(lambda *_: [catalogue.SCALE], _calls)
