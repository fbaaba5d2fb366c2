"""Rotary position embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.rope import Rope

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: Rope) -> list[Call]:
    return [lowering.attention.rope(op)]


OP = CpuOp(lambda *_: [catalogue.ROPE], _calls, frozenset({"sections"}))
