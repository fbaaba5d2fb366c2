"""Bytes of weights, keys and values that a tape's calls read in one step.

In: calls with their argument records, as they are after the step; of a mixture, the number of experts that its last
layer chose. Out: bytes. Knows no times.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.layout.chosen_records import EXPERT_PRODUCTS
from edgeinfer.backends.cpu.layout.panels import PANEL_ROWS, UNIT_ROWS, IntegerPanel
from edgeinfer.backends.cpu.layout.records import ATTENTION, FLOAT_PRODUCT, PRODUCT
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.graph.step import PAGE, Step
from edgeinfer.jit.code import Kernel

PANELS = UNIT_ROWS // PANEL_ROWS
"""Of a unit."""


def bytes_read(call: Call, n_visible: int) -> int:
    """Bytes a call reads whatever the number of tokens; attention for a single token, which sees `n_visible` positions.

    0 for calls that read buffers alone, and for attention of several tokens (`n_visible` 0).
    """
    args, record = call.arguments[0], call.kernel.arguments
    if record in (PRODUCT, FLOAT_PRODUCT):
        return int(args["n_units"]) * _unit_bytes(call.kernel, args)
    if record == EXPERT_PRODUCTS and call.calls is not None:
        product = _at(int(args["products"]), call.calls.arguments)[0]
        n_chosen = int(_at(int(args["lists"]), np.dtype("i8"))[0])
        return n_chosen * int(product["n_units"]) * _unit_bytes(call.calls, product)
    if record == ATTENTION and call.kernel.name.startswith("attend_by_chunk"):
        page_bytes = int(args["kv_heads"]) * int(args["key_bytes"] + args["value_bytes"])
        return min(n_visible, int(args["window"]) or n_visible) * page_bytes // PAGE
    return 0


def _unit_bytes(kernel: Kernel, args: NDArray[np.void]) -> int:
    """Bytes of two panels."""
    if kernel.arguments == FLOAT_PRODUCT:
        return PANELS * int(args["panel_bytes"])
    key = kernel.name.removeprefix("product-").rpartition("-")[0]
    return PANELS * int(args["n_records"]) * IntegerPanel.parse(key).record_bytes


def _at(address: int, kind: np.dtype[np.void] | np.dtype[np.int64]) -> NDArray[np.generic]:
    """One element of `kind` in memory, copied."""
    return np.frombuffer(ctypes.string_at(address, kind.itemsize), kind)


def visible_alone(step: Step) -> int:
    """How many positions the only token of a step sees; 0 if there are several."""
    positions = step.batch.positions
    return int(positions[0]) + 1 if len(positions) == 1 else 0
