"""Activated gates times the up half; if both come from integer products, one call does all three (`fusion`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.jit.code import Kernel

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: GatedAct, target: KernelTarget) -> list[Kernel]:
    gated = catalogue.CUT_GATED if op.threshold else catalogue.GATED
    return [] if place in choice.fusion.gated else [gated[op.activation]]


def _calls(lowering: CpuLowering, op: GatedAct) -> list[Call]:
    if op.threshold:
        return [lowering.thresholds.call(op, lowering.by_columns(op.out))]
    return [lowering.columns(catalogue.GATED[op.activation], op.gate, op.up, op.out)]


OP = CpuOp(_kernels, _calls, frozenset({"threshold"}))
