"""A row added to parts of others, by tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.ops.mix_parts import parts_call, why_not
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.add_to_parts import AddToParts

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering


def _calls(lowering: CpuLowering, op: AddToParts) -> list[Call]:
    call = parts_call(lowering, op, catalogue.ADD_TO_PARTS)
    call.arguments["first"] = op.first
    return [call]


OP = CpuOp(lambda *_: [catalogue.ADD_TO_PARTS], _calls, frozenset({"first", "factors"}), why_not)
