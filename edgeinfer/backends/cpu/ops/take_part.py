"""A part of rows copied, by tokens, with the kernel that joins heads: one head, whose second half is empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import records
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.take_part import TakePart

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def copied(lowering: CpuLowering, source: tuple[str, int], out: tuple[str, int], width: int) -> Call:
    """The call that copies columns between two buffers, each given with its first column."""
    buffers = lowering.buffers
    args = np.zeros(1, records.JOIN_HEADS)
    args["heads"], args["count"], args["first_width"] = 1, buffers.count(out[0]), width
    for part, (name, first) in (("first", source), ("out", out)):
        start, args[f"{part}_stride"] = buffers.at(name)
        args[part] = start + 4 * _column(lowering, name, first)
    names = frozenset({source[0]}), frozenset({out[0]})
    return Call(catalogue.JOIN_HEADS, args, *names, lowering.by_tokens(out[0]))


def _column(lowering: CpuLowering, name: str, first: int) -> int:
    """Where a column lies in a buffer, whose heads may be padded."""
    heads = lowering.buffers.heads.get(name)
    return first if heads is None else first // heads.width * heads.padded + first % heads.width


def _calls(lowering: CpuLowering, op: TakePart) -> list[Call]:
    return [copied(lowering, (op.source, op.part * op.width), (op.out, 0), op.width)]


OP = CpuOp(lambda *_: [catalogue.JOIN_HEADS], _calls)
