"""Multiplication by a constant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.padding import LANES
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.scale import Scale

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: Scale) -> list[Call]:
    further = 1.0 if op.weight is None else float(lowering.buffers.vector(op.weight, LANES)[0])
    return [lowering.columns(catalogue.SCALE, op.value, op.value, op.value, op.factor * further)]


OP = CpuOp(lambda *_: [catalogue.SCALE], _calls, frozenset({"weight"}))
