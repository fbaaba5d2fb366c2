"""Records of `engine.kv.kvcache`: placed batches, copies to perform, and the pages of each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.memories import KVMemory, StateMemory
from edgeinfer.engine.kv.states import Advance
from edgeinfer.graph.step import PAGE, Batch, Int32s, Step

Indices = NDArray[np.integer[Any]]

FULL = (
    "the KV cache is full: {} pages of {} tokens are needed, {} of {} are free; close other sessions or load the model "
    "with room for more of them"
)


@dataclass(frozen=True, slots=True)
class Copies:
    """Slots to copy, pairwise: sources int32[C], targets int32[C]; and states to advance by accepted tokens."""

    sources: Int32s
    targets: Int32s
    advances: tuple[Advance, ...] = ()

    def apply(self, memory: KVMemory, states: StateMemory | None = None) -> None:
        """Perform the copies. `states`: given if the model's sequences have states."""
        if len(self.sources):
            memory.copy_slots(self.sources, self.targets)
        for each in self.advances:
            assert states is not None
            states.advance(each.source, each.target, each.nodes)


NO_COPIES = Copies(np.zeros(0, np.int32), np.zeros(0, np.int32))


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """A step, and the copies that must be performed before it runs."""

    step: Step
    copies: Copies


@dataclass(slots=True)
class SequencePages:
    """Pages of a sequence (the last may be partly filled), spare pages of pending siblings, and committed tokens."""

    pages: list[int]
    spare: list[int]
    n_cached: int


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """A placed batch and the slots of its tokens."""

    batch: Batch
    slots: Int32s


def leaders_of(positions: Indices) -> Indices:
    """Indices of the first token at each distinct position."""
    first: Indices = np.unique(positions, return_index=True)[1]
    return first


def table_slots(pages: list[int], positions: Indices) -> Int32s:
    """The slots of positions, looked up in a page table."""
    slots: Indices = np.array(pages, np.int32)[positions // PAGE] * PAGE + positions % PAGE
    return slots.astype(np.int32)
