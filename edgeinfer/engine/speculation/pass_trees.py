"""The trees of all texts of a pass, grown together by one compiled loop.

In: the addresses of the trees, the room of the pass. Out: trees as large as raises the tokens per second of all texts
together; a tree may stay at its root. Knows no texts and no tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.engine.requests.drafting import DraftRoom
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.records import MOST, PASS


class PassTrees:
    """What the loop needs to know of a pass. `grow`: the loop; `fixed`: draft as much as fits, whatever it costs."""

    def __init__(self, grow: Callable[[int], int], costs: Costs, *, fixed: bool) -> None:
        self._grow, self._costs = grow, costs
        self._addresses = np.zeros(MOST, np.int64)
        self._record = np.zeros(1, PASS)
        self._fields, self._address = self._record[0], int(self._record.ctypes.data)
        self._fields["fixed"] = fixed

    def set(self, trees: Sequence[int], room: DraftRoom) -> None:
        """Set the trees of the next pass, by their addresses, and its room."""
        n_trees, n_others = len(trees), min(room.n_others, MOST)
        if n_trees > len(self._addresses):
            self._addresses = np.zeros(2 * n_trees, np.int64)
        self._addresses[:n_trees] = trees
        fields = self._fields
        fields["trees"], fields["n_trees"], fields["costs"] = self._addresses.ctypes.data, n_trees, self._costs.address
        fields["most"], fields["most_pages"] = max(n_trees, min(room.n_tokens, MOST - n_others)), room.n_pages
        fields["beside"], fields["beside_expected"] = n_others, room.expected

    def grow(self) -> int:
        """Grow these trees; returns the number of tokens of the pass that are theirs."""
        return self._grow(self._address)
