"""Pages of sequences: the records of `engine.kv.kvcache`, and which pages have a place in sliding-window layers.

In: pages that sequences take and free. Out: placed batches, copies to perform, the pages of each sequence; places of
pages in layers that keep only a window (`operands.Windows`), and the assignments to send to the device. A page keeps
its place after its positions have left the window, until another page needs the place: a sequence can be truncated back
to there. Holds no keys or values and knows no device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.memories import KVMemory, StateMemory, WindowMemory
from edgeinfer.engine.kv.states import Advance
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.operands import Windows
from edgeinfer.graph.step import PAGE, Batch, Int32s, Step

Indices = NDArray[np.integer[Any]]

FULL = (
    "the KV cache is full: {} pages of {} tokens are needed, {} of {} are free; close other sessions or load the model "
    "with room for more of them"
)
NO_PLACE = -1


@dataclass(frozen=True, slots=True)
class Copies:
    """Slots to copy, pairwise: sources int32[C], targets int32[C]; and states to advance by accepted tokens."""

    sources: Int32s
    targets: Int32s
    advances: tuple[Advance, ...] = ()

    @classmethod
    def of(cls, sources: Sequence[int], targets: Sequence[int]) -> Copies:
        """Copies from lists of slots."""
        return cls(np.array(sources, np.int32), np.array(targets, np.int32)) if sources else NO_COPIES

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


class WindowPages:
    """Bookkeeping of the places for `n_pages` pages."""

    def __init__(self, windows: Windows, n_pages: int) -> None:
        self._windows, self.n_spare = windows, windows.n_spare
        self._free = list(range(windows.n_pages - 1, -1, -1))
        self._places = [NO_PLACE] * n_pages
        self._untold: dict[int, None] = {}  # pages whose place was not sent to the device yet

    @property
    def n_free(self) -> int:
        """Places that are not taken by a page."""
        return len(self._free)

    @property
    def is_short(self) -> bool:
        """Whether fewer places are free than drafts may need."""
        return len(self._free) < self.n_spare

    def give(self, page: int) -> None:
        """Assign a place to a page. Call `require` before."""
        self._places[page] = self._free.pop()
        self._untold[page] = None

    def drop(self, page: int) -> None:
        """Free the place of a page, if it has one."""
        place, self._places[page] = self._places[page], NO_PLACE
        if place != NO_PLACE:
            self._free.append(place)
            self._untold.pop(page, None)

    def have_places(self, pages: Iterable[int]) -> bool:
        """Whether sliding-window layers store all of these pages."""
        return all(self._places[page] != NO_PLACE for page in pages)

    def first_page(self, n_cached: int) -> int:
        """Index of the first page of a sequence that the token after `n_cached` sees in sliding-window layers."""
        return max(0, n_cached + 1 - self._windows.tokens) // PAGE

    def reach(self, pages: Sequence[int], n_tokens: int) -> int:
        """The last position up to `n_tokens` from which a sequence with these pages can continue."""
        while n_tokens:
            seen = range(self.first_page(n_tokens), -(-n_tokens // PAGE))
            missing = [index for index in seen if self._places[pages[index]] == NO_PLACE]
            if not missing:
                break
            n_tokens = missing[-1] * PAGE
        return n_tokens

    def require(self, n_places: int, sequences: Iterable[SequencePages], references: Sequence[int]) -> None:
        """Make sure that `n_places` places are free. `references`: sequences per page. Raises DoesNotFit."""
        if n_places > self.n_free:
            self.free_up(n_places, sequences, references)
        if n_places > self.n_free:
            raise DoesNotFit(FULL.format(n_places, PAGE, self.n_free, self._windows.n_pages))

    def free_up(self, n_places: int, sequences: Iterable[SequencePages], references: Sequence[int]) -> None:
        """Free places of pages outside the windows of all their sequences, farthest first, until there are enough."""
        passed: dict[int, list[int]] = {}  # distance of a page behind the window of each of its sequences
        for found in sequences:
            first = self.first_page(found.n_cached)
            for index, page in enumerate(found.pages[:first]):
                if self._places[page] != NO_PLACE:
                    passed.setdefault(page, []).append(first - index)
        unseen = [(min(behind), page) for page, behind in passed.items() if len(behind) == references[page]]
        for _, page in sorted(unseen, reverse=True)[: max(0, n_places - self.n_free)]:
            self.drop(page)

    def tell(self, memory: WindowMemory) -> None:
        """Send the device the places assigned since the last call."""
        if self._untold:
            pages = list(self._untold)
            places = [self._places[page] for page in pages]
            memory.assign(np.array(pages, np.int32), np.array(places, np.int32))
            self._untold.clear()
