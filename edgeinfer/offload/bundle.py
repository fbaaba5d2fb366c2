"""A bundle: a part of a model's weights that one read fetches, and which parts of which matrices it holds.

In: nothing. Out: records. Knows neither files nor how matrices are packed.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.operands import Weight

PAGE_BYTES = 4096
"""Bundles begin at multiples of this size, as disks and direct reads require."""
Key = tuple[Weight, int]
"""A weight and the padded width of its heads, 0 if its rows are not cut into heads."""


@dataclass(frozen=True, slots=True)
class PanelRange:
    """Panels `first` to `first + n_panels - 1` of a matrix, `offset` bytes from the start of their bundle."""

    key: Key
    first: int
    n_panels: int
    offset: int


@dataclass(frozen=True, slots=True)
class Run:
    """Records `first` to `first + count - 1` of a layer, by its number; `count` 0: what the layer's records share."""

    layer: int
    first: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Bundle:
    """One unit of reading: `nbytes` at `offset` (a multiple of PAGE_BYTES) in the data of a file.

    `expert`: the number of the expert whose matrices the bundle holds; None if every pass needs the bundle. `stays`:
    the bundle must be in memory all the time. `run`: the records that the bundle holds instead of parts of matrices.
    """

    number: int
    stage: str
    offset: int
    nbytes: int
    parts: tuple[PanelRange, ...]
    expert: int | None = None
    stays: bool = False
    run: Run | None = None

    @property
    def is_dense(self) -> bool:
        """Whether every pass needs the bundle."""
        return self.expert is None and (self.run is None or not self.run.count)

    @property
    def padded_bytes(self) -> int:
        """The bundle's bytes, padded to where the next bundle may begin."""
        return -(-self.nbytes // PAGE_BYTES) * PAGE_BYTES
