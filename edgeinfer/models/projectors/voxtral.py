"""Voxtral: Whisper's encoder, four rows joined to one, two products.

Source: arXiv 2507.13264. A sound is filled up with silence to whole chunks of 30 seconds, of 375 rows each.
"""

from __future__ import annotations

from edgeinfer.graph.ops.act import Act
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.projectors import Projector
from edgeinfer.models.sounds.chunks import SAMPLES, filled_chunks, require_window
from edgeinfer.models.sounds.encoder import SoundEncoder
from edgeinfer.models.sounds.whisper import Whisper, require_whole
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import MediaPlan, TilePlan, joined_neighbours
from edgeinfer.models.vision.native import Marks

MARKS = Marks("[BEGIN_AUDIO]", "[AUDIO]", "")


def build(hp: Hyperparameters) -> SoundEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    whisper, width = Whisper.of(hp), Whisper.of(hp).n_out
    n_most, factor = whisper.n_most, whisper.stacked()
    require_whole(whisper, factor)
    joined = factor * whisper.width
    last = whisper.begun_projection(n_most // factor, joined)
    transformer.product(last, "joined", "hidden", "mm.a.mlp.1", width, joined)
    last.add(Act("hidden", "hidden", width, "gelu"))
    transformer.product(last, "hidden", "x", "mm.a.mlp.2", width, width)
    tile = TilePlan((1, n_most), n_most // factor)

    def plan(n_samples: int) -> MediaPlan:
        require_window(n_samples)
        n_chunks = -(-n_samples // (n_most * SAMPLES))
        return MediaPlan((tile,) * n_chunks, (MARKS.begin, *range(n_chunks)))

    return SoundEncoder(
        trunk=whisper.trunk(normed=True),
        projection=transformer.end(last),
        n_most=n_most,
        width=width,
        placeholder=MARKS.placeholder,
        plan=plan,
        tiles=lambda samples, _: filled_chunks(samples, n_most, whisper.n_mels),
        joined=joined_neighbours(factor),
        stem=whisper.stem,
        positions=(whisper.table, whisper.positions),
    )


PROJECTOR = Projector(sound=build)
