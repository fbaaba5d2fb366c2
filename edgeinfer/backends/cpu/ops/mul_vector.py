"""Multiplies all rows by a vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.mul_vector import MulVector
from edgeinfer.jit.memory import address

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: MulVector) -> list[Call]:
    call = lowering.columns(catalogue.MUL_VECTOR, op.out, op.out, op.out)
    buffers = lowering.buffers
    call.arguments["source"] = address(buffers.vector(op.weight, buffers.arrays[op.out].shape[1]))
    return [call]


OP = CpuOp(lambda *_: [catalogue.MUL_VECTOR], _calls)
