"""Activated gates times some columns of a wider buffer: the kernel of gates, given where these columns lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.padding import BLOCK
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.gated_columns import GatedColumns
from edgeinfer.jit.code import Kernel

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: GatedColumns, target: KernelTarget) -> list[Kernel]:
    return [catalogue.GATED[op.activation]]


def _calls(lowering: CpuLowering, op: GatedColumns) -> list[Call]:
    call = lowering.columns(catalogue.GATED[op.activation], op.gate, op.source, op.out)
    call.arguments["other"] += 4 * op.first
    return [call]


def _why_not(op: Op) -> str | None:
    assert isinstance(op, GatedColumns)
    if op.first % BLOCK or op.width % BLOCK:  # a row's padding would be read from the columns that follow
        return f"it takes multiples of {BLOCK} columns, not {op.width} from {op.first} on"
    return None


OP = CpuOp(_kernels, _calls, why_not=_why_not)
