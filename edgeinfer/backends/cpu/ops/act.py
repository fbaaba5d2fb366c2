"""Activations without a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.act import Act
from edgeinfer.jit.code import Kernel

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: Act, target: KernelTarget) -> list[Kernel]:
    return [(catalogue.CUT_ACT if op.threshold else catalogue.ACT)[op.activation]]


def _calls(lowering: CpuLowering, op: Act) -> list[Call]:
    if op.threshold:
        return [lowering.thresholds.call(op, lowering.by_columns(op.out))]
    return [lowering.columns(catalogue.ACT[op.activation], op.source, op.source, op.out)]


OP = CpuOp(_kernels, _calls, frozenset({"threshold"}))
