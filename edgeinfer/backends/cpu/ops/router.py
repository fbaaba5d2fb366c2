"""The choice of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lowering.needs import CpuOp
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.router import Router

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering

FIELDS = frozenset({"scoring", "normalised", "scale", "bias", "groups", "active_groups", "scales", "rated_by"})


def _calls(lowering: CpuLowering, op: Router) -> list[Call]:
    return [lowering.experts.route(op)]


OP = CpuOp(lambda *_: [catalogue.ROUTE], _calls, FIELDS)
