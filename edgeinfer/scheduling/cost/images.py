"""What it costs to encode an image: the work of an encoder's graphs, and the seconds of an image's tiles.

In: an encoder, the tensor table of its file, the plan of an image, a machine's profile. Out: seconds. A tile is a pass
of all its patches, which attend to each other. Reads no weights and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.vision.encoder import ImageEncoder, MediaPlan
from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.profile import Profile


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """The work of an image encoder: `trunk` for each patch, `projection` for each row."""

    trunk: ModelWork
    projection: ModelWork

    @classmethod
    def of(cls, encoder: ImageEncoder, tensors: Mapping[str, TensorInfo]) -> EncoderWork:
        """The work that a header describes."""
        return cls(work_of(encoder.trunk, tensors), work_of(encoder.projection, tensors))

    def seconds(self, profile: Profile, plan: MediaPlan) -> float:
        """Seconds of encoding an image on a machine's CPU."""
        by_size: dict[tuple[int, int], float] = {}
        total = 0.0
        for tile in plan.tiles:
            sizes = tile.grid[0] * tile.grid[1], tile.n_rows
            if sizes not in by_size:
                works = zip((self.trunk, self.projection), sizes, strict=True)
                by_size[sizes] = sum(_pass_s(profile, work, n_tokens) for work, n_tokens in works)
            total += by_size[sizes]
        return total


def _pass_s(profile: Profile, work: ModelWork, n_tokens: int) -> float:
    """Seconds of a pass whose result is a row for each token."""
    return DeviceCost(profile.cpu, work.weight_bytes).model(work, Pass(n_tokens, 0, n_tokens)).total
