"""Selects the rows whose logits are wanted; if only a rounded norm reads them, it selects them itself (`fusion`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.padding import LANES
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.memory import address

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: TakeOutputs, target: KernelTarget) -> list[Kernel]:
    return [] if place in choice.fusion.taken_rows else [catalogue.TAKE_OUTPUTS]


def _calls(lowering: CpuLowering, op: TakeOutputs) -> list[Call]:
    buffers, step = lowering.buffers, lowering.step
    args = np.zeros(1, records.TAKE_OUTPUTS)
    args["source"], args["out"] = address(buffers.arrays[op.source]), address(buffers.arrays[op.out])
    args["stride"], args["n_vectors"] = buffers.at(op.out)[1], buffers.arrays[op.out].shape[1] // LANES
    args["outputs"], args["count"] = step.outputs_at, step.n_outputs_at
    taken, out = frozenset({op.source}), frozenset({op.out})
    return [Call(catalogue.TAKE_OUTPUTS, args, NOTHING, out, lowering.by_tokens(op.out), taken)]


OP = CpuOp(_kernels, _calls)
