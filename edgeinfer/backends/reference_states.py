"""States of sequences on the reference device: float32 arrays by layer and slot.

In: steps, and what an op makes of a state at each token. Out: the contents of slots. The engine decides what each slot
holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.operands import LayerState
from edgeinfer.graph.step import Floats, Step


class ReferenceStates:
    """The states of sequences, and the states after each token of the last pass."""

    def __init__(self, layers: Sequence[LayerState], n_slots: int) -> None:
        self.n_slots = n_slots
        self._layers = [np.zeros((n_slots, *layer.shape), np.float32) for layer in layers]
        self._after: list[list[Floats]] = [[] for _ in layers]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(layer.nbytes for layer in self._layers)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return self.nbytes // self.n_slots

    def walk(self, number: int, step: Step, advance: Callable[[int, Floats], Floats]) -> None:
        """`OpContext.walk`."""
        assert step.states is not None
        layer, states, parents = self._layers[number], step.states, step.batch.parents.tolist()
        after: list[Floats] = []
        for token, parent in enumerate(parents):
            slot = int(states.loads[step.rows[token]])
            before = after[parent] if parent >= 0 else np.zeros_like(layer[0]) if slot < 0 else layer[slot]
            after.append(advance(token, before))
        for row, n_tokens, slot in states.saves.tolist():
            layer[slot] = after[int(states.firsts[row]) + n_tokens - 1]
        self._after[number] = after

    def advance(self, source: int, target: int, nodes: Sequence[int]) -> None:
        """Store in a slot the state after tokens of the last pass."""
        for layer, after in zip(self._layers, self._after, strict=True):
            layer[target] = after[nodes[-1]]

    def read(self, slots: Sequence[int]) -> NDArray[np.uint8]:
        """Contents of slots: uint8[len(slots), slot_bytes]; zeros for a slot below zero."""
        parts = []
        for layer in self._layers:
            rows = layer[np.maximum(slots, 0)].reshape(len(slots), -1)
            rows[np.asarray(slots) < 0] = 0.0
            parts.append(rows)
        return np.ascontiguousarray(np.concatenate(parts, axis=1)).view(np.uint8)

    def write(self, slots: Sequence[int], contents: NDArray[np.uint8]) -> None:
        """Restore the contents of slots."""
        numbers, start = np.ascontiguousarray(contents).view(np.float32), 0
        for layer in self._layers:
            width = layer[0].size
            layer[list(slots)] = numbers[:, start : start + width].reshape(-1, *layer.shape[1:])
            start += width
