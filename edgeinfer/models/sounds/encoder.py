"""What an encoder of sound is: an `Encoder` whose tiles are chunks of a sound.

In: what a file of `models.projectors` makes of a projector file's header. Out: a record that the engine runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.graph.step import Floats
from edgeinfer.models.vision.encoder import Encoder, MediaPlan, TileInput


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundEncoder(Encoder):
    """An encoder of sound.

    plan   what a sound of so many samples becomes; raises BadSound
    tiles  the chunks of a sound, float32[N], as inputs of the stem, in the order of the plan
    """

    plan: Callable[[int], MediaPlan]
    tiles: Callable[[Floats, MediaPlan], list[TileInput]]
