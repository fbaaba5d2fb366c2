"""Where the work of a model is placed: rows of matrices, attention and the rest, on devices.

In: nothing. Out: the records that the planner makes, the simulator runs and the executor applies. Knows no times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Held = Literal["own", "streamed", "flash"]
"""Where rows lie between passes: in the memory of the device that computes them, in the machine's memory, from where
they are sent over the link in every pass, or on disk, from where they are read in every pass."""


@dataclass(frozen=True, slots=True)
class Part:
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
    """One stage: `products` has the parts of each matrix in order of rows; `attention` attends and keeps the cache.

    `home`: where the stage's values between products are, and where all other ops run.
    """

    home: str
    products: tuple[tuple[Part, ...], ...]
    attention: str | None


@dataclass(frozen=True, slots=True)
class Placement:
    """A whole model, stage by stage as in its `ModelWork`."""

    stages: tuple[StagePlacement, ...]
