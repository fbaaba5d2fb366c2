"""Attention over pages: by tiles of tokens, or by chunks of positions whose results are joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.pages import PageLayout
from edgeinfer.backends.cpu.lowering.needs import CpuOp, KernelTarget, whole_attention
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.jit.code import Kernel

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.lowering.model import CpuLowering
    from edgeinfer.backends.cpu.lowering.needs import KernelChoice


def _kernels(choice: KernelChoice, place: int, op: Attention, target: KernelTarget) -> list[Kernel]:
    layout = PageLayout(target.kv, op.key_width, op.value_width)
    whole = whole_attention(op, layout, target.isa_name)
    if whole is not None:
        return [whole]
    kernels = catalogue.attention(layout, target.isa_name)
    found = [kernels.by_tile, kernels.by_chunk, kernels.join]
    if target.budgets and op.window is None:
        chosen = catalogue.attention(layout, target.isa_name, chosen=True)
        found += [*catalogue.choose_chunks(layout), chosen.by_tile, chosen.by_chunk, chosen.join]
    if op.block_budget is not None:
        found.append(catalogue.choose_for_blocks(layout, target.isa_name))
    return found


def _calls(lowering: CpuLowering, op: Attention) -> list[Call]:
    return lowering.attention.attention(op)


FIELDS = frozenset({"window", "soft_cap", "sinks", "causal", "alibi", "chunked", "relative", "block_budget", "spans"})
OP = CpuOp(_kernels, _calls, FIELDS | {"precision"})
