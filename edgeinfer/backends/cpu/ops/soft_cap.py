"""Soft cap of values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.soft_cap import SoftCap

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: SoftCap) -> list[Call]:
    return [lowering.columns(catalogue.SOFT_CAP, op.value, op.value, op.value, op.cap)]


OP = CpuOp(lambda *_: [catalogue.SOFT_CAP], _calls)
