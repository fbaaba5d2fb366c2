"""Products, with the rounding of activations before them if weights are integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.panels import FloatPanel
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.jit.code import Kernel

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: MatMul, target: KernelTarget) -> list[Kernel]:
    panel = choice.panel(op)
    if isinstance(panel, FloatPanel):
        return [choice.split(op, target.isa_name) or catalogue.product_float(panel, target.isa_name)]
    tiles = choice.tiles(op, target.isa_name)
    return [catalogue.ROUND_ROWS, catalogue.product(panel, target.isa_name), *([tiles] if tiles else [])]


def _calls(lowering: CpuLowering, op: MatMul) -> list[Call]:
    return lowering.matmul.product(op)


OP = CpuOp(_kernels, _calls, frozenset({"bias", "accumulate", "precision"}))
