"""Qwen2-Audio, and the sound of Qwen2.5-Omni: Whisper's encoder, pairs of rows averaged, one product.

Sources: arXiv 2407.10759, 2503.20215. The encoder sees nothing of the silence with which a sound is filled up, so only
the tokens of the sound run. Qwen2-Audio reads a sound of more than 30 seconds in pieces, each as a sound of its own;
the processor of transformers cuts it off there. Qwen2.5-Omni's sound has one spectrum, and its convolutions, positions
and attention stay within windows of 2 seconds, which are its chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.step import Floats
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.projectors import Projector
from edgeinfer.models.sounds.chunks import n_frames, n_tokens, piece_chunks, pieces, require_window, windows
from edgeinfer.models.sounds.encoder import SoundEncoder
from edgeinfer.models.sounds.whisper import KEYS, STRIDE, Whisper, require_whole
from edgeinfer.models.vision import transformer
from edgeinfer.models.vision.encoder import MediaPlan, Size, TileInput, TilePlan
from edgeinfer.models.vision.native import Marks

MARKS = Marks("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
POOLED = 2


WINDOW = 100
"""Tokens of a window of Qwen2.5-Omni."""


def build(hp: Hyperparameters) -> SoundEncoder:
    """The encoder of a file of Qwen2-Audio. Raises BadGGUF where tensors or keys are missing."""
    whisper = Whisper.of(hp)
    n_most = whisper.n_most

    def lengths(n_samples: int) -> list[int]:
        return [n_tokens(length) for length in pieces(n_samples, n_most)]

    return _encoder(whisper, lengths, lambda samples: piece_chunks(samples, n_most, whisper.n_mels))


def build_windowed(hp: Hyperparameters) -> SoundEncoder:
    """The encoder of a file of Qwen2.5-Omni. Raises BadGGUF where tensors or keys are missing."""
    whisper = Whisper.of(hp)
    n_most = min(WINDOW, whisper.n_most)
    whisper = replace(whisper, n_most=n_most)

    def lengths(n_samples: int) -> list[int]:
        whole, rest = divmod(-(-n_frames(n_samples) // STRIDE), n_most)
        return [n_most] * whole + ([rest] if rest >= POOLED else [])

    return _encoder(whisper, lengths, lambda samples: windows(samples, n_most, whisper.n_mels))


def _encoder(
    whisper: Whisper, lengths: Callable[[int], list[int]], tiles: Callable[[Floats], list[TileInput]]
) -> SoundEncoder:
    """`lengths`: tokens of each chunk of a sound of so many samples; `tiles`: the chunks."""
    hp, own, width = whisper.hp, whisper.width, whisper.n_out
    require_whole(whisper, POOLED)
    last = whisper.begun_projection(whisper.n_most // POOLED, own)
    weight, bias = hp.vector("a.post_ln.weight", own), hp.vector("a.post_ln.bias", own)
    epsilon = hp.positive(f"{KEYS}attention.layer_norm_epsilon", 1e-5)
    last.add(LayerNorm("joined", last.buffer("normed", own), weight, bias, own, epsilon))
    transformer.product(last, "normed", "x", "mm.a.fc", width, own)

    def plan(n_samples: int) -> MediaPlan:
        require_window(n_samples)
        found = tuple(TilePlan((1, length), length // POOLED) for length in lengths(n_samples))
        return MediaPlan(found, (MARKS.begin, *range(len(found)), MARKS.end))

    return SoundEncoder(
        trunk=whisper.trunk(normed=False),
        projection=transformer.end(last),
        n_most=whisper.n_most,
        width=width,
        placeholder=MARKS.placeholder,
        plan=plan,
        tiles=lambda samples, planned: tiles(samples)[: len(planned.tiles)],
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
