"""LayerNorm, of rows, of heads or of all heads as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.layout.padding import LANES, padded
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.jit.memory import address

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: LayerNorm) -> list[Call]:
    buffers = lowering.buffers
    heads = buffers.heads.get(op.source)
    is_whole = heads is not None and op.groups == 1 and op.width != heads.width  # all heads are normed as one
    parts, part = (heads.count, heads.width) if heads is not None and is_whole else (1, op.width)
    period = padded(part) if heads is None else heads.padded
    group = period * parts
    length = group * op.groups
    args = np.zeros(1, records.LAYER_NORM)
    args["source"], args["source_stride"] = buffers.at(op.source)
    args["out"], args["out_stride"] = buffers.at(op.out)
    args["weight"] = address(
        buffers.constant(1.0, length) if op.weight is None else buffers.vector(op.weight, length, heads)
    )
    args["bias"] = address(buffers.constant(0.0, length) if op.bias is None else buffers.vector(op.bias, length, heads))
    args["groups"], args["group_stride"] = op.groups, group * 4
    args["n_vectors"], args["last"] = group // LANES, part - period + LANES
    args["parts"], args["period"] = parts, period // LANES
    args["count"], args["width"], args["epsilon"] = buffers.count(op.source), op.width, op.epsilon
    share = lowering.by_tokens(op.source)
    return [Call(catalogue.LAYER_NORM, args, frozenset({op.source}), frozenset({op.out}), share)]


OP = CpuOp(lambda *_: [catalogue.LAYER_NORM], _calls, frozenset({"groups"}))
