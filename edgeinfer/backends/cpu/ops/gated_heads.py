"""Head outputs times their gates, by tokens, with the record of kernels over parts of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import part_records
from edgeinfer.backends.cpu.layout.padding import padded
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.gated_heads import GatedHeads

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: GatedHeads) -> list[Call]:
    buffers = lowering.buffers
    args = np.zeros(1, part_records.PARTS)
    args["factors"], args["factors_stride"] = buffers.at(op.gate)
    args["out"], args["out_stride"] = buffers.at(op.value)
    args["parts"], args["part_bytes"], args["count"] = op.heads, 4 * padded(op.width), buffers.count(op.value)
    return [Call(catalogue.GATED_HEADS, args, op.reads, op.writes, lowering.by_tokens(op.value))]


OP = CpuOp(lambda *_: [catalogue.GATED_HEADS], _calls)
