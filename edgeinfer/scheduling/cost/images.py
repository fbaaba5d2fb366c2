"""What it costs to encode an image or a sound: the work of an encoder's graphs, and the seconds of its tiles.

In: an encoder, the tensor table of its file, the plan of an image or a sound, a machine's profile. Out: seconds. A tile
is a pass of all its tokens, which attend to each other. Reads no weights and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.vision.encoder import Encoder, MediaPlan
from edgeinfer.scheduling.cost.seconds import DeviceCost, Pass
from edgeinfer.scheduling.cost.work import ModelWork, work_of
from edgeinfer.scheduling.machine.profile import Profile


@dataclass(frozen=True, slots=True)
class EncoderWork:
    """The work of an encoder: `trunk` for each of its tokens, `projection` for each row.

    `stem`: the work of a graph before the trunk, and its tokens for each of the trunk; None without.
    """

    trunk: ModelWork
    projection: ModelWork
    stem: tuple[ModelWork, int] | None = None

    @classmethod
    def of(cls, encoder: Encoder, tensors: Mapping[str, TensorInfo]) -> EncoderWork:
        """The work that a header describes."""
        stem = None if encoder.stem is None else (work_of(encoder.stem.graph, tensors), encoder.stem.per_token)
        return cls(work_of(encoder.trunk, tensors), work_of(encoder.projection, tensors), stem)

    def seconds(self, profile: Profile, plan: MediaPlan) -> float:
        """Seconds of encoding an image or a sound on a machine's CPU."""
        by_size: dict[tuple[int, int], float] = {}
        total = 0.0
        for tile in plan.tiles:
            sizes = tile.grid[0] * tile.grid[1], tile.n_rows
            if sizes not in by_size:
                works = zip((self.trunk, self.projection), sizes, strict=True)
                by_size[sizes] = sum(_pass_s(profile, work, n_tokens) for work, n_tokens in works)
                if self.stem is not None:
                    by_size[sizes] += _pass_s(profile, self.stem[0], self.stem[1] * sizes[0])
            total += by_size[sizes]
        return total


def _pass_s(profile: Profile, work: ModelWork, n_tokens: int) -> float:
    """Seconds of a pass whose result is a row for each token."""
    return DeviceCost(profile.cpu, work.weight_bytes).model(work, Pass(n_tokens, 0, n_tokens)).total
