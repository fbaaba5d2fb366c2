"""Ultravox: Whisper's encoder, several rows joined to one, a gated product between two norms.

Source: the published code of Ultravox 0.5 (github.com/fixie-ai/ultravox). The encoder reads a sound as long as it is,
in chunks of up to 30 seconds of one spectrum; rows that the last run lacks are zeros.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.projectors import Projector
from edgeinfer.models.sounds.chunks import own_chunks, require_window
from edgeinfer.models.sounds.encoder import SoundEncoder
from edgeinfer.models.sounds.mel import HOP
from edgeinfer.models.sounds.whisper import STRIDE, Whisper
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import MediaPlan, Size, TilePlan

PLACEHOLDER = r"<\|audio\|>"
EPSILON = 1e-6


def build(hp: Hyperparameters) -> SoundEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    whisper = Whisper.of(hp)
    n_most, factor = whisper.n_most, whisper.stacked()
    last = whisper.begun_projection(-(-n_most // factor), factor * whisper.width)
    _project(last, factor * whisper.width, whisper.n_out)

    def plan(n_samples: int) -> MediaPlan:
        require_window(n_samples)
        tokens, rest = divmod(-(-(n_samples // HOP) // STRIDE), n_most)
        lengths = [n_most] * tokens + ([rest] if rest else [])
        tiles = tuple(TilePlan((1, length), -(-length // factor)) for length in lengths)
        return MediaPlan(tiles, tuple(range(len(tiles))))

    def joined(rows: Floats, _: Size) -> Floats:
        return np.pad(rows, ((0, -len(rows) % factor), (0, 0))).reshape(-1, factor * rows.shape[1])

    return SoundEncoder(
        trunk=whisper.trunk(normed=True),
        projection=transformer.end(last),
        n_most=n_most,
        width=whisper.n_out,
        placeholder=PLACEHOLDER,
        plan=plan,
        tiles=lambda samples, _: own_chunks(samples, n_most, whisper.n_mels),
        joined=joined,
        stem=whisper.stem,
        positions=(whisper.table, whisper.positions),
    )


def _project(g: ModelGraph, columns: int, width: int) -> None:
    """Two products with norms before them; the second half of the first one is the gate of the other."""
    hp, first = g.hp, "mm.a.mlp.1.weight"
    both = transformer.rows_of(hp, first)
    inner = both // 2
    g.add(RMSNorm("joined", g.buffer("normed", columns), hp.vector("mm.a.norm_pre.weight", columns), columns, EPSILON))
    for name, start in (("up", 0), ("gate", inner)):
        weight = hp.matrix(first, (2 * inner, columns), (start, start + inner))
        g.add(MatMul("normed", g.buffer(name, inner), weight))
    g.add(GatedAct("gate", "up", "gate", inner, "silu"))
    g.add(RMSNorm("gate", "gate", hp.vector("mm.a.norm_mid.weight", inner), inner, EPSILON))
    transformer.product(g, "gate", "x", "mm.a.mlp.2", width, inner)


PROJECTOR = Projector(sound=build)
