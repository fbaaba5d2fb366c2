"""RMSNorm, of heads or of whole rows; if only integer products read the result, it is rounded at once (`fusion`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.padding import LANES, padded
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.memory import address

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: RMSNorm, target: KernelTarget) -> list[Kernel]:
    return [catalogue.ROUND_ROWS if place in choice.fusion.rounded_norms else catalogue.RMS_NORM]


def _calls(lowering: CpuLowering, op: RMSNorm) -> list[Call]:
    buffers = lowering.buffers
    heads = buffers.heads.get(op.source)
    is_whole = heads is not None and op.groups == 1 and op.width != heads.width  # all heads are normalised as one
    group = padded(op.width) if heads is None else heads.padded * (heads.count if is_whole else 1)
    args = np.zeros(1, records.RMS_NORM)
    args["source"], args["source_stride"] = buffers.at(op.source)
    args["out"], args["out_stride"] = buffers.at(op.out)
    n_weights = group * (op.groups if op.own else 1)
    args["weight"] = address(buffers.norm_vector(op.weight, op.width, n_weights, heads))
    args["weight_stride"] = group * 4 if op.own else 0
    args["groups"], args["group_stride"], args["n_vectors"] = op.groups, group * 4, group // LANES
    args["count"], args["width"], args["epsilon"] = buffers.count(op.source), op.width, op.epsilon
    share = lowering.by_tokens(op.source)
    return [Call(catalogue.RMS_NORM, args, frozenset({op.source}), frozenset({op.out}), share)]


OP = CpuOp(_kernels, _calls, frozenset({"groups", "own"}))
