"""Mixtures of experts: tokens grouped by expert, and the products of one expert after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.panels import FloatPanel
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.jit.code import Kernel

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: Experts, target: KernelTarget) -> list[Kernel]:
    panels, found = choice.expert_panels(op), [catalogue.GROUP_BY_EXPERT, catalogue.FINISH_HIDDEN]
    for panel in panels.all:
        if isinstance(panel, FloatPanel):
            found += [catalogue.MULTIPLY_EXPERT_FLOATS, catalogue.product_float(panel, target.isa_name)]
        else:
            found += [catalogue.MULTIPLY_EXPERTS, catalogue.product(panel, target.isa_name)]
    if op.adapters:
        found.append(catalogue.READY_LOW_ROWS)
    return [*found, catalogue.ROUND_ROWS] if panels.rounds_source else found


def _calls(lowering: CpuLowering, op: Experts) -> list[Call]:
    return lowering.experts.experts(op)


OP = CpuOp(_kernels, _calls, frozenset({"activation", "biases", "scales_source", "adapters"}))
