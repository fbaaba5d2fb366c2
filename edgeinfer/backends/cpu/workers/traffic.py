"""Bytes of weights, keys and values that a tape's calls read in one step.

In: calls with their argument records; of a lone token, the positions it sees and the experts it uses. Out: bytes. Knows
no times.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.catalogue import TILED
from edgeinfer.backends.cpu.layout.attention_records import ATTENTION
from edgeinfer.backends.cpu.layout.chosen_records import EXPERT_PRODUCTS
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS, UNIT_ROWS, IntegerPanel
from edgeinfer.backends.cpu.layout.records import FLOAT_PRODUCT, PRODUCT
from edgeinfer.backends.cpu.layout.rounded import TILE
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.step import PAGE, Step
from edgeinfer.jit.code import Kernel

PANELS = UNIT_ROWS // PANEL_ROWS
"""Of a unit."""


def bytes_read(call: Call, n_tokens: int, n_visible: int, n_experts: int) -> int:
    """Bytes a call reads in a step of `n_tokens`: products in every step; attention and experts for a lone token.

    `n_visible`: positions that the token sees; `n_experts`: experts that it uses in this op; both 0 for several tokens,
    of which each sees and uses others. 0 for calls that read buffers alone.
    """
    args, record = call.arguments[0], call.kernel.arguments
    if record == PRODUCT and args["tiled"] and _is_idle(call.kernel, n_tokens):
        return 0
    if record in (PRODUCT, FLOAT_PRODUCT):
        return int(args["n_units"]) * _unit_bytes(call.kernel, args)
    if record == EXPERT_PRODUCTS and call.calls is not None:
        product = record_at(int(args["products"]), call.calls.arguments)[0]
        return n_experts * int(product["n_units"]) * _unit_bytes(call.calls, product)
    if record == ATTENTION and call.kernel.name.startswith(("attend_by_chunk", "attend_chosen_chunk")):
        page_bytes = int(args["kv_heads"]) * int(args["key_bytes"] + args["value_bytes"])
        return min(n_visible, int(args["window"]) or n_visible) * page_bytes // PAGE
    return 0


def _is_idle(kernel: Kernel, n_tokens: int) -> bool:
    """Whether a call of a product has nothing to do: the one for whole tiles of tokens, or the one for others."""
    return n_tokens < TILE if kernel.name.endswith(tuple(TILED)) else n_tokens % TILE == 0


def _unit_bytes(kernel: Kernel, args: NDArray[np.void]) -> int:
    """Bytes of two panels."""
    if kernel.arguments == FLOAT_PRODUCT:
        return PANELS * int(args["panel_bytes"])
    key = kernel.name.removeprefix("product-").rpartition("-")[0]
    return PANELS * int(args["n_records"]) * IntegerPanel.parse(key).record_bytes


def record_at(address: int, kind: np.dtype[np.void]) -> NDArray[np.void]:
    """One element of `kind` in memory, copied."""
    return np.frombuffer(ctypes.string_at(address, kind.itemsize), kind)


def visible_alone(step: Step) -> int:
    """How many positions the only token of a step sees; 0 if there are several."""
    positions, budgets = step.batch.positions, step.batch.budgets
    if len(positions) != 1:
        return 0
    n_seen = int(positions[0]) + 1
    return min(n_seen, int(budgets[0])) if budgets is not None and budgets[0] > 0 else n_seen
