"""The placement of a model's work: rows of matrices, attention and the rest, on devices.

In: rows of a matrix. Out: how finely it may be split; the records that the planner makes, the simulator runs and the
executor applies. Knows no times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgeinfer.scheduling.cost.work import ModelWork

Held = Literal["own", "streamed", "flash"]
"""Where rows are between passes: in the memory of the device that computes them; in the machine's memory, to be sent
over the link in every pass; or on disk, to be read in every pass."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `start:stop` of a matrix, computed by `device`."""

    device: str
    start: int
    stop: int
    held: Held = "own"

    @property
    def n_rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class StagePlacement:
    """One stage: `products` has the parts of each matrix in row order; `attention` attends and keeps the KV cache.

    `home`: where the stage's values between matmuls are, and where all other ops run.
    """

    home: str
    products: tuple[tuple[RowRange, ...], ...]
    attention: str | None


@dataclass(frozen=True, slots=True)
class Placement:
    """A whole model, stage by stage as in its `ModelWork`."""

    stages: tuple[StagePlacement, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that take part, in order of their first work."""
        found: dict[str, None] = {}
        for stage in self.stages:
            found[stage.home] = None
            found.update({part.device: None for parts in stage.products for part in parts if part.n_rows})
            if stage.attention is not None:
                found[stage.attention] = None
        return tuple(found)


def all_on(work: ModelWork, device: str) -> Placement:
    """A whole model on one device."""
    stages = []
    for stage in work.stages:
        products = tuple((RowRange(device, 0, product.n_rows),) for product in stage.shape.products)
        stages.append(StagePlacement(device, products, None if stage.shape.attention is None else device))
    return Placement(tuple(stages))


PANEL_ROWS = 16
"""Rows that kernels compute together."""
LEAST_GRANULES = 64
"""Fewest granules in a matrix; a small matrix has granules smaller than a panel."""


def granule(n_rows: int) -> int:
    """Rows that stay together in a matrix of `n_rows`."""
    size = PANEL_ROWS
    while size > 1 and n_rows < size * LEAST_GRANULES:
        size //= 2
    return size
