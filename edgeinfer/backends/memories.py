"""What a device holds of sequences: KV pages, pages of layers that keep only a window, and states.

The seams by which the engine reads, writes and copies them. Which page or slot holds what is the engine's to decide
(`engine.kv.kvcache`); a memory only does as it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.step import Int32s


class StateMemory(Protocol):
    """What holds the states of sequences on one device, by slots (`graph.state`)."""

    @property
    def n_slots(self) -> int: ...

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's states, as `read` gives them."""
        ...

    def advance(self, source: int, target: int, nodes: Sequence[int]) -> None:
        """Let a slot hold the state of another one after tokens of the last pass, a chain that follows it."""
        ...

    def read(self, slots: Sequence[int]) -> NDArray[np.uint8]:
        """Contents of slots: uint8[len(slots), slot_bytes]."""
        ...

    def write(self, slots: Sequence[int], contents: NDArray[np.uint8]) -> None:
        """Put back what `read` of a lane of the same model and device kind gave."""
        ...


class WindowMemory(Protocol):
    """What holds the pages of layers that keep only a window; fewer than there are pages of a KV memory."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, as `read` gives it."""
        ...

    def assign(self, pages: Int32s, places: Int32s) -> None:
        """Let pages of the KV memory lie, in these layers, at these of their own pages from now on."""
        ...

    def read(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages that have a place: uint8[len(pages), page_bytes]."""
        ...

    def write(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Put back what `read` of a lane of the same model and device kind gave."""
        ...


class KVMemory(Protocol):
    """What holds weights and KV pages on one device."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory held for weights, buffers and KV pages."""
        ...

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy the keys and values of slots, in order, in all layers."""
        ...

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages in the lane's own layout: uint8[len(pages), page_bytes]; of layers that keep everything."""
        ...

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Put back what `read_pages` of a lane of the same model and device kind gave."""
        ...

    def close(self) -> None: ...
