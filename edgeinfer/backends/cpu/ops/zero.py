"""Fills buffers with zeros."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call
from edgeinfer.graph.ops.zero import Zero

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: Zero) -> list[Call]:
    call = lowering.columns(catalogue.ZERO, op.value, op.value, op.value)
    return [replace(call, reads=NOTHING)]


OP = CpuOp(lambda *_: [catalogue.ZERO], _calls)
