"""Sums of buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.add import Add

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: Add) -> list[Call]:
    return [lowering.columns(catalogue.ADD, op.source, op.source, op.out)]


OP = CpuOp(lambda *_: [catalogue.ADD], _calls)
