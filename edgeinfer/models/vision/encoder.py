"""What an image encoder is: two graphs, how images become their inputs, and how its rows stand in a prompt.

In: what a file of `models.projectors` makes of a projector file's header. Out: records that the engine runs. An image
is cut into tiles, which are encoded one by one; a tile is cut into patches, the tokens of `trunk`. Its rows, joined
with their neighbours, are the tokens of `projection`, whose rows are as wide as the language model's embedding. Knows
no device and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.models.images.resizing import Pixels as Pixels
from edgeinfer.models.images.resizing import Size as Size


@dataclass(frozen=True, slots=True)
class TilePlan:
    """A tile before anything is decoded. `grid`: its patches down and across; `n_rows`: rows that it becomes.

    `axes`: int32[n_rows, 3], positions of these rows for language models that have three per token; None for others.
    """

    grid: Size
    n_rows: int
    axes: Int32s | None = None


@dataclass(frozen=True, slots=True)
class TilePart:
    """Rows `first` to before `stop` of a tile, where texts stand between its rows."""

    tile: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class MediaPlan:
    """What an image of some size becomes: its tiles, and what stands for it in a prompt.

    `parts`: texts, in which special tokens are spelled, and numbers of tiles or parts of them, whose rows stand there.
    """

    tiles: tuple[TilePlan, ...]
    parts: tuple[str | int | TilePart, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all tiles."""
        parts = (part for part in self.parts if not isinstance(part, str))
        return sum(self.tiles[part].n_rows if isinstance(part, int) else part.stop - part.first for part in parts)


@dataclass(frozen=True, slots=True)
class TileInput:
    """A tile as the tokens of `trunk`.

    patches  float32[N, P]  patches, those next to each other in the projection's tokens following one another
    axes     int32[N, 3]    positions for a two-dimensional rotary embedding; None without
    spans    int32[N, 2]    first and last patch that each sees in layers with windows; None without such layers
    """

    patches: Floats
    axes: Int32s | None = None
    spans: Int32s | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEncoder:
    """An image encoder, read from a projector file's header.

    trunk        from patches (`HiddenRows`) to rows
    projection   from joined rows (`HiddenRows`) to rows of the language model
    n_most       most patches of a tile
    width        numbers in a row of the language model
    placeholder  what chat templates write for an image: a regular expression
    plan         what an image of a size (after its orientation) becomes
    tiles        the tiles of an image, as inputs of the trunk, in the order of the plan
    joined       joins rows of the trunk for the projection: float32[N, D] and the grid to float32[M, W]
    positions    learned positions: their table, and what makes the rows of a grid of it, float32[N, D]; None without
    constants    vectors as long as a row of that table, which are appended to it: a class embedding, a bias
    whole        whether rows of an image see each other in the language model, whatever their order
    """

    trunk: ModelSpec
    projection: ModelSpec
    n_most: int
    width: int
    placeholder: str
    plan: Callable[[Size], MediaPlan]
    tiles: Callable[[Pixels, MediaPlan], list[TileInput]]
    joined: Callable[[Floats, Size], Floats]
    positions: tuple[Weight, Callable[[Floats, Size], Floats]] | None = None
    constants: tuple[Weight, ...] = ()
    whole: bool = False
    unread: str = field(default="", repr=False)
    """A pattern of tensors in the file that the encoder has no use for."""


def joined_neighbours(n: int) -> Callable[[Floats, Size], Floats]:
    """What joins each run of `n` rows to one: a pixel shuffle of patches whose blocks follow one another."""

    def joined(rows: Floats, _: Size) -> Floats:
        return rows.reshape(len(rows) // n, -1)

    return joined


def averaged_neighbours(n: int) -> Callable[[Floats, Size], Floats]:
    """What averages each run of `n` rows: average pooling of patches whose blocks follow one another."""

    def joined(rows: Floats, _: Size) -> Floats:
        means: Floats = rows.reshape(len(rows) // n, n, -1).mean(axis=1, dtype=np.float32)
        return means

    return joined
