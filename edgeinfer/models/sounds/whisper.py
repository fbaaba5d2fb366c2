"""Whisper's encoder, which most models that hear have: two convolutions over mel frames, then a transformer.

In: a projector file's header. Out: the graphs, and what lies between them. A convolution is a product of three frames
that follow one another: the first one is the stem, and the trunk begins with the second one, which reads every other
row of the stem. Uses the tensor names of llama.cpp's converter (`a.…`). Source: arXiv 2212.04356. Raises BadGGUF for
missing tensors or wrong shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import Size, Stem

KEYS = "audio."
POSITIONS = "a.position_embd.weight"
TAPS, STRIDE = 3, 2
"""Frames that a convolution reads, and how far the second one goes on."""
MELS_MOST = 1 << 10


@dataclass(frozen=True, slots=True)
class Whisper:
    """The encoder of a file. `table`: its positions; `n_most`: most tokens of the trunk, one for each of them."""

    hp: Hyperparameters
    n_mels: int
    width: int
    table: Weight
    n_most: int

    @classmethod
    def of(cls, hp: Hyperparameters) -> Whisper:
        """That of a file."""
        width = hp.integer(f"{KEYS}embedding_length")
        n_mels = hp.integer(f"{KEYS}num_mel_bins", most=MELS_MOST)
        table = hp.columns_of(POSITIONS, width)
        return cls(hp, n_mels, width, table, table.n_rows)

    @property
    def n_out(self) -> int:
        """Numbers in a row of the language model."""
        return self.hp.integer(f"{KEYS}projection_dim")

    @property
    def stem(self) -> Stem:
        """The first convolution, of mel frames, and the rows that the second one reads."""
        g = transformer.begun_projection(self.hp, STRIDE * self.n_most, TAPS * self.n_mels, self.width)
        self._convolution(g, 1, "joined", self.n_mels)
        return Stem(transformer.end(g), _frames_joined, _rows_joined, STRIDE)

    def trunk(self, *, normed: bool) -> ModelSpec:
        """The second convolution, positions, layers, and, with `normed`, the norm after them."""
        sizes = transformer.sizes_of(self.hp, self.n_most, keys=KEYS)
        g, columns = ModelGraph(self.hp, sizes), TAPS * self.width
        g.stage("embed", "a.")
        g.add(HiddenRows(g.buffer("joined", columns), columns))
        self._convolution(g, 2, "joined", self.width)
        places = g.buffer("normed", self.width)
        g.add(HiddenRows(places, self.width, columns), Add(places, "x", self.width))
        transformer.shared_cache(g)
        for number in range(sizes.n_layers):
            transformer.layer(g, number, "gelu", blocks="a.blk.")
        if normed:
            transformer.norm(g, "a.post_ln", out="x")
        return transformer.end(g)

    def positions(self, table: Floats, grid: Size) -> Floats:
        """The positions of a chunk's tokens: float32[T, D]."""
        rows: Floats = table[: grid[1]]
        return rows

    def begun_projection(self, n_rows: int, joined: int) -> ModelGraph:
        """The graph after the trunk, as `transformer.begun_projection` has it. `n_rows`: most rows of a chunk."""
        return transformer.begun_projection(self.hp, n_rows, joined, self.n_out)

    def stacked(self) -> int:
        """How many rows are joined to one."""
        return self.hp.integer(f"{KEYS}projector.stack_factor", most=self.n_most)

    def _convolution(self, g: ModelGraph, number: int, source: str, channels: int) -> None:
        """x = the activated convolution of joined frames."""
        name, x = f"a.conv1d.{number}", g.buffer("x", self.width)
        weight = self.hp.kernel(f"{name}.weight", self.width, TAPS * channels)
        g.add(MatMul(source, x, weight, self.hp.flat(f"{name}.bias", self.width)), Act(x, x, self.width, "gelu"))


def require_whole(whisper: Whisper, factor: int) -> None:
    """Raises BadGGUF for chunks that cannot be cut into runs of so many rows."""
    if whisper.n_most % factor:
        raise BadGGUF(f"chunks of sound have {whisper.n_most} tokens, which are no multiple of {factor}")


def _frames_joined(frames: Floats, grid: Size) -> Floats:
    """Each frame with its neighbours: float32[F, 3 * mels]. There may be one frame more, a neighbour alone."""
    n_frames = min(len(frames), STRIDE * grid[1])
    padded = np.zeros((n_frames + 2, frames.shape[1]), np.float32)
    known = frames[: n_frames + 1]
    padded[1 : 1 + len(known)] = known
    return _joined(padded, n_frames, 1)


def _rows_joined(rows: Floats, grid: Size) -> Floats:
    """Every other row with its neighbours: float32[T, 3 * D]."""
    padded = np.zeros((STRIDE * grid[1] + 1, rows.shape[1]), np.float32)
    padded[1 : 1 + len(rows)] = rows
    return _joined(padded, grid[1], STRIDE)


def _joined(padded: Floats, n: int, stride: int) -> Floats:
    """`n` runs of three rows, each number beside those of the same column, as kernels of convolutions have them."""
    windows = np.lib.stride_tricks.sliding_window_view(padded, TAPS, axis=0)[::stride][:n]
    return np.ascontiguousarray(windows.reshape(n, -1))
