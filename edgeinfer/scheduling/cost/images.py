"""What it costs to encode an image: the work of an encoder's graphs, and the seconds of an image's tiles.

In: an encoder, the tensor table of its file, the plan of an image, a machine's profile. Out: seconds. A tile is a pass
of all its patches, which attend to each other, or to those of their window. Reads no weights and measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.vision.encoder import ImageEncoder, MediaPlan, Size
from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.profile import Profile


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """The work of an image encoder: `trunk` for each patch, `projection` for each row. `seen`: as in the encoder."""

    trunk: ModelWork
    projection: ModelWork
    seen: Callable[[Size], float] | None = None

    @classmethod
    def of(cls, encoder: ImageEncoder, tensors: Mapping[str, TensorInfo]) -> EncoderWork:
        """The work that a header describes."""
        return cls(work_of(encoder.trunk, tensors), work_of(encoder.projection, tensors), encoder.seen)

    def seconds(self, profile: Profile, plan: MediaPlan) -> float:
        """Seconds of encoding an image on a machine's CPU."""
        by_size: dict[tuple[Size, int], float] = {}
        total = 0.0
        for tile in plan.tiles:
            size = tile.grid, tile.n_rows
            if size not in by_size:
                trunk = self.trunk if self.seen is None else self.trunk.with_span(self.seen(tile.grid))
                trunk_s = _pass_s(profile, trunk, tile.grid[0] * tile.grid[1])
                by_size[size] = trunk_s + _pass_s(profile, self.projection, tile.n_rows)
            total += by_size[size]
        return total


def _pass_s(profile: Profile, work: ModelWork, n_tokens: int) -> float:
    """Seconds of a pass whose result is a row for each token."""
    return DeviceCost(profile.cpu, work.weight_bytes).model(work, Pass(n_tokens, 0, n_tokens)).total
