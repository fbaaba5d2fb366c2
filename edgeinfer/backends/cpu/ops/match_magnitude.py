"""Rows scaled to the magnitude of others, by tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import part_records
from edgeinfer.backends.cpu.layout.padding import LANES, padded
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.match_magnitude import MatchMagnitude

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: MatchMagnitude) -> list[Call]:
    buffers = lowering.buffers
    args = np.zeros(1, part_records.MATCH_MAGNITUDE)
    for part in ("value", "target"):
        args[part], args[f"{part}_stride"] = buffers.at(getattr(op, part))
    args["n_vectors"], args["count"] = padded(op.width) // LANES, buffers.count(op.value)
    args["width"], args["least"] = op.width, op.least
    return [Call(catalogue.MATCH_MAGNITUDE, args, op.reads, op.writes, lowering.by_tokens(op.value))]


OP = CpuOp(lambda *_: [catalogue.MATCH_MAGNITUDE], _calls)
