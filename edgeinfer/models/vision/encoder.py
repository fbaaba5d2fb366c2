"""What an encoder of images is: its graphs, how images become their inputs, and how its rows stand in a prompt.

In: what a file of `models.projectors` makes of a projector file's header. Out: records that the engine runs. An image
is cut into tiles, which are encoded one by one; a tile is cut into patches, the tokens of `trunk`. Its rows, joined
with their neighbours, are the tokens of `projection`, whose rows are as wide as the language model's embedding. Some
encoders have a second trunk between them. Encoders of sound (`models.sounds.encoder`) are the same with chunks of sound
as tiles, and a stem before the trunk. Knows no device and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.models.images.resizing import PixelSource
from edgeinfer.models.images.resizing import Size as Size

Pixels: TypeAlias = PixelSource
"""What tiles are cut of."""


@dataclass(frozen=True, slots=True)
class TilePlan:
    """A tile before anything is decoded. `grid`: tokens of the trunk down and across; `n_rows`: rows that it becomes.

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
class ImageNumber:
    """A part of a plan in whose place the image's number in its prompt is written, the first one's 0."""


@dataclass(frozen=True, slots=True)
class MediaPlan:
    """What an image or a sound of some size becomes: its tiles, and what stands for it in a prompt.

    `parts`: texts, in which special tokens are spelled, the image's number, and numbers of tiles or parts of them,
    whose rows stand there.
    """

    tiles: tuple[TilePlan, ...]
    parts: tuple[str | int | TilePart | ImageNumber, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all tiles."""
        whole = sum(self.tiles[part].n_rows for part in self.parts if isinstance(part, int))
        return whole + sum(part.stop - part.first for part in self.parts if isinstance(part, TilePart))


@dataclass(frozen=True, slots=True)
class TileInput:
    """A tile as the tokens of a trunk, or of the stem if there is one.

    patches  float32[N, P]  patches, those next to each other in the projection's tokens following one another; or what
                            makes them, where pixels take less memory until then
    axes     int32[N, 3]    positions for a two-dimensional rotary embedding; None without
    spans    int32[N, 2]    first and last patch that each sees in layers with windows; None without such layers
    """

    patches: Floats | Callable[[], Floats]
    axes: Int32s | None = None
    spans: Int32s | None = None

    def made(self) -> Floats:
        """The patches."""
        return self.patches() if callable(self.patches) else self.patches


@dataclass(frozen=True, slots=True)
class Stem:
    """A graph before the trunk. `before`: its tokens, of a tile's patches; `after`: those of the trunk, of its rows.

    Both are given the grid of the tile. `per_token`: tokens of the stem for each of the trunk.
    """

    graph: ModelSpec
    before: Callable[[Floats, Size], Floats]
    after: Callable[[Floats, Size], Floats]
    per_token: int


@dataclass(frozen=True, slots=True)
class SecondTrunk:
    """A graph between trunk and projection: a resampler, or the layers after rows were merged.

    graph     from its tokens (`HiddenRows`) to rows
    tokens    its tokens, from rows of the trunk, the grid of patches and the table, empty without one
    n_tokens  how many these are for a number of patches
    table     a matrix of the file that becomes tokens too, such as learned queries; None without
    """

    graph: ModelSpec
    tokens: Callable[[Floats, Size, Floats], TileInput]
    n_tokens: Callable[[int], int]
    table: Weight | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """What encoders of images and of sound have in common, read from a projector file's header.

    trunk        from patches (`HiddenRows`) to rows
    second       what reads these rows before they are joined; None for most encoders
    projection   from joined rows (`HiddenRows`) to rows of the language model
    n_most       most tokens of the trunk of a tile
    width        numbers in a row of the language model
    placeholder  what chat templates write for an image or a sound: a regular expression
    joined       joins rows of the last trunk for the projection: float32[N, D] and the grid to float32[M, …], whose
                 numbers are those of M rows; a view where that is possible, of which only parts are copied
    stem         a graph before the trunk; None without
    positions    learned positions: their table, and what makes the rows of a grid of it, float32[N, D]; None without
    constants    vectors as long as a row of that table, which are appended to it: a class embedding, a bias
    seen         how many patches of a grid each sees on average in layers with windows; None without such layers
    whole        whether rows of an image see each other in the language model, whatever their order
    """

    trunk: ModelSpec
    projection: ModelSpec
    n_most: int
    width: int
    placeholder: str
    joined: Callable[[Floats, Size], Floats]
    stem: Stem | None = None
    positions: tuple[Weight, Callable[[Floats, Size], Floats]] | None = None
    constants: tuple[Weight, ...] = ()
    second: SecondTrunk | None = None
    seen: Callable[[Size], float] | None = None
    whole: bool = False
    unread: str = field(default="", repr=False)
    """A pattern of tensors in the file that the encoder has no use for."""

    @property
    def graphs(self) -> tuple[ModelSpec, ...]:
        """All graphs, in the order in which they run."""
        before = () if self.stem is None else (self.stem.graph,)
        between = () if self.second is None else (self.second.graph,)
        return *before, self.trunk, *between, self.projection

    @property
    def tables(self) -> tuple[Weight, ...]:
        """What is read beside the weights of the graphs: positions, constants, learned queries."""
        positions = () if self.positions is None else (self.positions[0],)
        queries = () if self.second is None or self.second.table is None else (self.second.table,)
        return *positions, *self.constants, *queries


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEncoder(Encoder):
    """An encoder of images.

    plan   what an image of a size (after its orientation) becomes
    tiles  the tiles of an image, as inputs of the trunk, in the order of the plan
    """

    plan: Callable[[Size], MediaPlan]
    tiles: Callable[[Pixels, MediaPlan], list[TileInput]]


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
