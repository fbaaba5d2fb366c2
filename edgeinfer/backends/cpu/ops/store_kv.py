"""Writes keys and values of new tokens into pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.pages import PageLayout
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.jit.code import Kernel

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: StoreKV, target: KernelTarget) -> list[Kernel]:
    return [catalogue.store_kv(PageLayout(target.kv, op.key_width, op.value_width))]


def _calls(lowering: CpuLowering, op: StoreKV) -> list[Call]:
    return [lowering.attention.store(op, lowering.matmul.alone)]


OP = CpuOp(_kernels, _calls)
