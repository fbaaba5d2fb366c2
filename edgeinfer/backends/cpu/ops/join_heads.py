"""Heads joined from two parts, by tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.join_heads import JoinHeads

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: JoinHeads) -> list[Call]:
    buffers = lowering.buffers
    args = np.zeros(1, records.JOIN_HEADS)
    args["heads"], args["count"] = op.heads, buffers.count(op.out)
    for part, name, width in (("first", op.first, op.first_width), ("second", op.second, op.second_width)):
        args[part], args[f"{part}_stride"] = buffers.at(name)
        args[f"{part}_width"], args[f"{part}_head_stride"] = width, _head_bytes(lowering, name, width)
    if op.shared:
        args["second_head_stride"] = 0
    args["out"], args["out_stride"] = buffers.at(op.out)
    args["out_head_stride"] = _head_bytes(lowering, op.out, op.width)
    return [Call(catalogue.JOIN_HEADS, args, op.reads, op.writes, lowering.by_tokens(op.out))]


def _head_bytes(lowering: CpuLowering, name: str, width: int) -> int:
    """Bytes between two heads of a buffer."""
    heads = lowering.buffers.heads.get(name)
    return 4 * (width if heads is None else heads.padded)


OP = CpuOp(lambda *_: [catalogue.JOIN_HEADS], _calls, frozenset({"shared"}))
