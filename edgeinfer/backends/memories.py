"""What a device stores of sequences: KV pages, pages of layers with a window, and states.

The interfaces by which the engine reads, writes and copies them. The engine decides which page or slot holds what
(`engine.kv.kvcache`); a memory only follows its instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.step import Int32s
from edgeinfer.offload.bundle_file import bundles_folder


def kv_folder() -> Path:
    """The folder of files for keys and values that are not in memory, beside the bundle files."""
    return bundles_folder().with_name("kv")


class StateMemory(Protocol):
    """The memory of sequence states on one device, addressed by slots (`graph.operands`)."""

    @property
    def n_slots(self) -> int: ...

    @property
    def slot_bytes(self) -> int:
        """Bytes of one sequence's states, as `read` returns them."""
        ...

    def advance(self, source: int, target: int, nodes: Sequence[int]) -> None:
        """Store in a slot the state of another slot advanced by tokens of the last pass, a chain that follows it."""
        ...

    def read(self, slots: Sequence[int]) -> NDArray[np.uint8]:
        """Contents of slots: uint8[len(slots), slot_bytes]."""
        ...

    def write(self, slots: Sequence[int], contents: NDArray[np.uint8]) -> None:
        """Restore what `read` returned, from a lane of the same model and device kind."""
        ...


class WindowMemory(Protocol):
    """The memory of pages of layers with a window; it has fewer pages than the KV memory."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, as `read` returns it."""
        ...

    def assign(self, pages: Int32s, places: Int32s) -> None:
        """Map pages of the KV memory to these pages of the window layers from now on."""
        ...

    def read(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages that are mapped: uint8[len(pages), page_bytes]."""
        ...

    def write(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore what `read` returned, from a lane of the same model and device kind."""
        ...


class KeyTurner(Protocol):
    """A memory whose tokens can be moved to other positions."""

    def turn_slots(
        self, sources: Int32s, targets: Int32s, distance: int, n_unseen: int = 0, scale: float = 1.0
    ) -> None:
        """Copy keys and values of slots, pairwise; keys become those of the same tokens `distance` positions later.

        A target may be the source of an earlier pair, not of a later one. `n_unseen`: pairs at the beginning that are
        left out in layers with a window (`Limits.windows`). `scale` multiplies the columns that turn.
        """
        ...


class KVMemory(Protocol):
    """The memory of weights and KV pages on one device."""

    @property
    def resident_bytes(self) -> int:
        """Bytes held for weights, buffers and KV pages."""
        ...

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy the keys and values of slots, in order, in all layers."""
        ...

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages in the lane's own layout, without window layers: uint8[len(pages), page_bytes]."""
        ...

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore what `read_pages` returned, from a lane of the same model and device kind."""
        ...

    def close(self) -> None: ...
