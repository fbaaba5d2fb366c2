"""Qwen2-Audio: Whisper's encoder, pairs of rows averaged, one product.

Source: arXiv 2407.10759. The encoder sees nothing of the silence with which a sound is filled up, so only the tokens of
the sound run. A sound of more than 30 seconds is read in pieces, each as a sound of its own; the processor of
transformers cuts it off there.
"""

from __future__ import annotations

from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.projectors import Projector
from edgeinfer.models.sounds.chunks import n_tokens, piece_chunks, pieces, require_window
from edgeinfer.models.sounds.encoder import SoundEncoder
from edgeinfer.models.sounds.whisper import KEYS, Whisper, require_whole
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import MediaPlan, Size, TilePlan
from edgeinfer.models.vision.native import Marks

MARKS = Marks("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
POOLED = 2


def build(hp: Hyperparameters) -> SoundEncoder:
    """The encoder of a file. Raises BadGGUF where tensors or keys are missing."""
    whisper = Whisper.of(hp)
    require_whole(whisper, POOLED)
    n_most, own, width = whisper.n_most, whisper.width, whisper.n_out
    last = whisper.begun_projection(n_most // POOLED, own)
    weight, bias = hp.vector("a.post_ln.weight", own), hp.vector("a.post_ln.bias", own)
    epsilon = hp.positive(f"{KEYS}attention.layer_norm_epsilon", 1e-5)
    last.add(LayerNorm("joined", last.buffer("normed", own), weight, bias, own, epsilon))
    transformer.product(last, "normed", "x", "mm.a.fc", width, own)

    def plan(n_samples: int) -> MediaPlan:
        require_window(n_samples)
        grids = [(1, n_tokens(length)) for length in pieces(n_samples, n_most)]
        tiles = tuple(TilePlan(grid, grid[1] // POOLED) for grid in grids)
        return MediaPlan(tiles, (MARKS.begin, *range(len(tiles)), MARKS.end))

    return SoundEncoder(
        trunk=whisper.trunk(normed=False),
        projection=transformer.end(last),
        n_most=n_most,
        width=width,
        placeholder=MARKS.placeholder,
        plan=plan,
        tiles=lambda samples, _: piece_chunks(samples, n_most, whisper.n_mels),
        joined=_averaged,
        stem=whisper.stem,
        positions=(whisper.table, whisper.positions),
    )


def _averaged(rows: Floats, _: Size) -> Floats:
    """Pairs of rows averaged; a last one alone is left out."""
    whole = rows[: len(rows) // POOLED * POOLED]
    means: Floats = whole.reshape(-1, POOLED, rows.shape[1]).mean(axis=1, dtype="float32")
    return means


PROJECTOR = Projector(sound=build)
