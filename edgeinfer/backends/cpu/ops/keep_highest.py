"""The highest values of rows, by tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import part_records
from edgeinfer.backends.cpu.layout.padding import LANES, padded
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.keep_highest import KeepHighest

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: KeepHighest) -> list[Call]:
    buffers, whole = lowering.buffers, padded(op.width)
    args = np.zeros(1, part_records.KEEP_HIGHEST)
    args["value"], args["stride"] = buffers.at(op.value)
    args["n_vectors"], args["last"] = whole // LANES, op.width - whole + LANES
    args["count"], args["width"], args["deviations"] = buffers.count(op.value), op.width, op.deviations
    return [Call(catalogue.KEEP_HIGHEST, args, op.reads, op.writes, lowering.by_tokens(op.value))]


OP = CpuOp(lambda *_: [catalogue.KEEP_HIGHEST], _calls)
