"""How a sound is cut into the chunks that an encoder reads: pieces of 30 seconds for Whisper's.

In: a number of samples, or the samples. Out: plans of chunks, and their mel frames. A token of the trunk is two mel
frames, 20 ms; an encoder has at most `n_most` tokens. Families differ in what they make of the last chunk: some fill it
with silence, some read what there is.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.errors import BadSound
from edgeinfer.graph.step import Floats
from edgeinfer.models.sounds.decoding import RATE
from edgeinfer.models.sounds.mel import HOP, LEAST_SAMPLES, log_mel
from edgeinfer.models.sounds.whisper import STRIDE
from edgeinfer.models.vision.encoder import TileInput

SAMPLES = STRIDE * HOP
"""Samples of a token of the trunk."""


def require_window(n_samples: int) -> None:
    """Raises BadSound for a sound without a whole window."""
    if n_samples < LEAST_SAMPLES:
        least = LEAST_SAMPLES / RATE * 1000
        raise BadSound(f"the sound lasts {n_samples / RATE * 1000:.0f} ms; models need at least {least:.0f} ms")


def filled(samples: Floats, n_most: int) -> Floats:
    """A sound with silence after it, up to a whole number of chunks."""
    return np.pad(samples, (0, -len(samples) % (n_most * SAMPLES)))


def filled_chunks(samples: Floats, n_most: int, n_mels: int) -> list[TileInput]:
    """The chunks of a sound with silence after it, which has one spectrum."""
    frames = log_mel(filled(samples, n_most), n_mels)
    return [TileInput(each) for each in _cut(frames, STRIDE * n_most)]


def own_chunks(samples: Floats, n_most: int, n_mels: int) -> list[TileInput]:
    """The chunks of a sound as it is; the last one is shorter."""
    return [TileInput(each) for each in _cut(log_mel(samples, n_mels), STRIDE * n_most)]


def windows(samples: Floats, n_most: int, n_mels: int) -> list[TileInput]:
    """The chunks of a sound that silence follows, which has one spectrum; the last one ends with the sound."""
    frames = log_mel(np.pad(samples, (0, LEAST_SAMPLES)), n_mels)[: n_frames(len(samples))]
    return [TileInput(each) for each in _cut(frames, STRIDE * n_most)]


def n_frames(n_samples: int) -> int:
    """Mel frames that begin within a sound."""
    return -(-n_samples // HOP)


def pieces(n_samples: int, n_most: int) -> list[int]:
    """The samples of each piece of a sound that is cut before spectra are made, without a last one of no rows."""
    whole, rest = divmod(n_samples, n_most * SAMPLES)
    return [n_most * SAMPLES] * whole + ([rest] if n_tokens(rest) // 2 else [])


def piece_chunks(samples: Floats, n_most: int, n_mels: int) -> list[TileInput]:
    """The chunks of a sound each of which is a sound of its own, with silence after it: as far as tokens reach."""
    found, first = [], 0
    for length in pieces(len(samples), n_most):
        frames = log_mel(filled(samples[first : first + length], n_most), n_mels)
        found.append(TileInput(frames[: STRIDE * n_tokens(length) + 1].copy()))
        first += length
    return found


def n_tokens(n_samples: int) -> int:
    """Tokens of the trunk that a sound is part of."""
    return -(-n_samples // SAMPLES)


def _cut(frames: Floats, size: int) -> list[Floats]:
    return [frames[first : first + size] for first in range(0, len(frames), size)]
