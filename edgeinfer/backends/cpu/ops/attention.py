"""Attention over pages: by tiles of tokens, or by chunks of positions that are joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.catalogue import Kernel
from edgeinfer.backends.cpu.op import CpuOp, Target
from edgeinfer.backends.cpu.pages import PageLayout
from edgeinfer.backends.cpu.tape import Call
from edgeinfer.graph.ops.attention import Attention

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering import Lowering
    from edgeinfer.backends.cpu.needs import Choice


def _kernels(choice: Choice, place: int, op: Attention, target: Target) -> list[Kernel]:
    kernels = catalogue.attention(PageLayout(target.kv, op.key_width, op.value_width), target.isa_name)
    return [kernels.by_tile, kernels.by_chunk, kernels.join]


def _calls(lowering: Lowering, op: Attention) -> list[Call]:
    return lowering.attending.attention(op)


OP = CpuOp(_kernels, _calls, frozenset({"window", "soft_cap", "sinks", "causal"}))
