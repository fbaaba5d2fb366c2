"""Parts of rows mixed, by tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import part_records
from edgeinfer.backends.cpu.layout.padding import LANES
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.add_to_parts import AddToParts
from edgeinfer.graph.ops.mix_parts import MixParts
from edgeinfer.jit.code import Kernel

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def parts_call(lowering: CpuLowering, op: MixParts | AddToParts, kernel: Kernel) -> Call:
    """The call of a kernel over parts of rows."""
    buffers = lowering.buffers
    args = np.zeros(1, part_records.PARTS)
    args["source"], args["source_stride"] = buffers.at(op.source)
    args["out"], args["out_stride"] = buffers.at(op.out)
    if op.factors is not None:
        args["factors"], args["factors_stride"] = buffers.at(op.factors)
    args["parts"], args["part_bytes"], args["count"] = op.parts, 4 * op.width, buffers.count(op.out)
    return Call(kernel, args, op.reads, op.writes, lowering.by_tokens(op.out))


def why_not(op: Op) -> str | None:
    """Why an op over parts cannot be run: a part's padding would be another part."""
    assert isinstance(op, MixParts | AddToParts)
    return f"it takes parts of a multiple of {LANES} columns, not {op.width}" if op.width % LANES else None


def _calls(lowering: CpuLowering, op: MixParts) -> list[Call]:
    return [parts_call(lowering, op, catalogue.MIX_PARTS)]


OP = CpuOp(lambda *_: [catalogue.MIX_PARTS], _calls, why_not=why_not)
