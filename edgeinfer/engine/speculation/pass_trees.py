"""The trees of all texts of a pass, grown together by one compiled loop.

In: the addresses of the trees, the room of the pass. Out: trees as large as raises the tokens per second of all texts
together; a tree may stay at its root. Knows no texts and no tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.engine.requests.drafting import DraftRoom
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.records import MOST, PASS

FIELDS = struct.Struct("=7qd")
"""All fields of a PASS: one call is faster than eight assignments."""


class PassTrees:
    """What the loop needs to know of a pass. `grow`: the loop; `fixed`: draft as much as fits, whatever it costs."""

    def __init__(self, grow: Callable[[int], int], costs: Costs, *, fixed: bool) -> None:
        self._grow, self._fixed = grow, int(fixed)
        self._curve, self._costs = costs.curve, costs.address  # the curve stays where it is
        self._addresses = np.zeros(MOST, np.int64)
        self._trees = int(self._addresses.ctypes.data)
        self._record = np.zeros(1, PASS)
        self._bytes, self._address = self._record.view(np.uint8).data, int(self._record.ctypes.data)

    def set(self, trees: Sequence[int], room: DraftRoom) -> None:
        """Set the trees of the next pass, by their addresses, and its room."""
        n_trees, n_others = len(trees), min(room.n_others, MOST)
        if n_trees > len(self._addresses):
            self._addresses = np.zeros(2 * n_trees, np.int64)
            self._trees = int(self._addresses.ctypes.data)
        self._addresses[:n_trees] = trees
        most = max(n_trees, min(room.n_tokens, MOST - n_others))
        sizes = self._trees, n_trees, most, room.n_pages, self._fixed, self._costs, n_others
        FIELDS.pack_into(self._bytes, 0, *sizes, room.expected)

    def grow(self) -> int:
        """Grow these trees; returns the number of tokens of the pass that are theirs."""
        return self._grow(self._address)
