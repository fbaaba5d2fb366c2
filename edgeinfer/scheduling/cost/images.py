"""What it costs to encode an image or a sound: the work of an encoder's graphs, and the seconds of its tiles.

In: an encoder, the tensor table of its file, the plan of an image or a sound, a machine's profile. Out: seconds. A tile
is a pass of all its tokens, which attend to each other, or to those of their window. Reads no weights and measures
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.vision.encoder import Encoder, MediaPlan, Size
from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.profile import Profile


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """The work of an encoder's graphs: of the stem and the trunk for each patch, of the projection for each row."""

    encoder: Encoder
    graphs: tuple[ModelWork, ...]

    @classmethod
    def of(cls, encoder: Encoder, tensors: Mapping[str, TensorInfo]) -> EncoderWork:
        """The work that a header describes."""
        return cls(encoder, tuple(work_of(graph, tensors) for graph in encoder.graphs))

    @property
    def trunk(self) -> ModelWork:
        """The work of the trunk."""
        return self.graphs[self._trunk_at]

    @property
    def projection(self) -> ModelWork:
        """The work of the projection."""
        return self.graphs[-1]

    @property
    def _trunk_at(self) -> int:
        return 0 if self.encoder.stem is None else 1

    def seconds(self, profile: Profile, plan: MediaPlan) -> float:
        """Seconds of encoding an image or a sound on a machine's CPU."""
        by_size: dict[tuple[Size, int], float] = {}
        total = 0.0
        for tile in plan.tiles:
            size = tile.grid, tile.n_rows
            if size not in by_size:
                n_tokens = self._n_tokens(tile.grid[0] * tile.grid[1], tile.n_rows)
                works = zip(self._works(tile.grid), n_tokens, strict=True)
                by_size[size] = sum(_pass_s(profile, work, n) for work, n in works)
            total += by_size[size]
        return total

    def _works(self, grid: Size) -> list[ModelWork]:
        """The work of each graph, of the trunk with the windows of a grid."""
        works, seen = list(self.graphs), self.encoder.seen
        if seen is not None:
            works[self._trunk_at] = self.trunk.with_span(seen(grid))
        return works

    def _n_tokens(self, n_patches: int, n_rows: int) -> tuple[int, ...]:
        """The tokens of each graph for a tile."""
        stem, second = self.encoder.stem, self.encoder.second
        before = () if stem is None else (stem.per_token * n_patches,)
        between = () if second is None else (second.n_tokens(n_patches),)
        return *before, n_patches, *between, n_rows


def _pass_s(profile: Profile, work: ModelWork, n_tokens: int) -> float:
    """Seconds of a pass whose result is a row for each token."""
    return DeviceCost(profile.cpu, work.weight_bytes).model(work, Pass(n_tokens, 0, n_tokens)).total
