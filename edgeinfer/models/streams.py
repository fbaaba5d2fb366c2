"""Several rows for each token, of which a layer computes one and predicts the others (AltUp, arXiv 2301.13310).

In: a graph whose buffer `x` holds embeddings. Out: ops that make the rows, predict them before a layer, correct them
after it, and join them. Between layers and within them, `x` is the first row or what becomes of it; the rows lie side
by side in one of two wide buffers, in turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.add_to_parts import AddToParts
from edgeinfer.graph.ops.join_parts import JoinParts
from edgeinfer.graph.ops.match_magnitude import MatchMagnitude
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.mix_parts import MixParts
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.graph.ops.soft_cap import SoftCap
from edgeinfer.graph.ops.take_part import TakePart
from edgeinfer.models.model_graph import ModelGraph

MOST = 16
"""Largest accepted number of rows of a token."""
LEAST_SQUARE = 1e-5
"""Least mean square by which a row is divided to match another one's magnitude."""


@dataclass(slots=True)
class Streams:
    """`count` rows of each token; `held` is the buffer where they are, `other` the one where they are not."""

    graph: ModelGraph
    count: int
    held: str
    other: str

    @classmethod
    def begin(cls, g: ModelGraph, count: int) -> Streams:
        """Project embeddings to the other rows of a token, each of the embedding's magnitude."""
        width = g.sizes.width
        projections = g.hp.stacked("altup_proj.weight", count - 1, (width, width))
        names = [g.buffer(f"stream {number}", width) for number in range(1, count)]
        for name, weight in zip(names, projections, strict=True):
            g.add(MatMul("x", name, weight), MatchMagnitude(name, "x", width, LEAST_SQUARE))
        held, other = (g.buffer(name, count * width) for name in ("streams", "predicted streams"))
        g.add(JoinParts(("x", *names), held, width))
        return cls(g, count, held, other)

    def predict(self) -> None:
        """Predict all rows from each other, before a layer; `x` is what is predicted for the first."""
        factors = self._factors("altup_predict_coef", self.count**2)
        self.graph.add(MixParts(self.held, factors, self.other, self.count, self.graph.sizes.width))
        self.held, self.other = self.other, self.held
        self.take("x")

    def correct(self) -> None:
        """Add to all rows how far `x`, which a layer made of the first, is from its prediction, times factors."""
        g, width = self.graph, self.graph.sizes.width
        factors, surprise = self._factors("altup_correct_coef", self.count), g.buffer("surprise", width)
        self.take(surprise)
        g.add(Scale(surprise, width, -1.0), Add("x", surprise, width))
        g.add(AddToParts(surprise, self.held, self.count, width, factors=factors))
        self.take("x")

    def add_to_others(self, source: str) -> None:
        """Add a buffer to all rows but the first."""
        self.graph.add(AddToParts(source, self.held, self.count, self.graph.sizes.width, 1))

    def join(self) -> None:
        """Write the mean of the first row and of projections of the others, of its magnitude, to `x`."""
        g, width = self.graph, self.graph.sizes.width
        row, projected, first = (g.buffer(name, width) for name in ("normed", "branch", "surprise"))
        self.take(first)
        for number, weight in enumerate(g.hp.stacked("altup_unembd_proj.weight", self.count - 1, (width, width)), 1):
            self.take(row, number)
            g.add(MatMul(row, projected, weight), MatchMagnitude(projected, first, width, LEAST_SQUARE))
            g.add(Add(projected, "x", width))
        g.add(Scale("x", width, 1.0 / self.count))

    def take(self, out: str, number: int = 0) -> None:
        """Copy one of the rows to a buffer."""
        self.graph.add(TakePart(self.held, out, self.count, number, self.graph.sizes.width))

    def _factors(self, tensor: str, count: int) -> str:
        """Factors made from `x` by the layer's router; returns their buffer."""
        g, hp, width, prefix = self.graph, self.graph.hp, self.graph.sizes.width, self.graph.prefix
        normed, modes = g.buffer("routed", width), g.buffer("modes", self.count)
        factors = g.buffer("stream factors", count)
        router = hp.matrix(f"{prefix}altup_router.weight", (self.count, width))
        weight = hp.vector(f"{prefix}altup_router_norm.weight", width)
        g.add(RMSNorm("x", normed, weight, width, g.sizes.epsilon), MatMul(normed, modes, router))
        g.add(Scale(modes, self.count, 1.0 / width), SoftCap(modes, self.count, 1.0))
        g.add(MatMul(modes, factors, hp.matrix(f"{prefix}{tensor}.weight", (count, self.count))))
        return factors
