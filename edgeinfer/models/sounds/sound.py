"""A sound as people hand it over: a file, its bytes, or an array of samples.

In: such a value. Out: `Sound`, with the name by which results are kept, its length before anything is decoded, and its
samples when they are asked for.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadSound
from edgeinfer.models.media_file import read_media
from edgeinfer.models.sounds.decoding import (
    MOST_BYTES,
    RATE,
    Samples,
    SoundHeader,
    decoded,
    header_of,
    require_length,
)

SoundSource = Union["Sound", str, os.PathLike[str], bytes, bytearray, memoryview, Samples]
LOUDEST = 2.0
"""Samples of arrays up to it are cut at 1, as resampling goes a little beyond; larger ones were not scaled."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A sound for a model. Sounds with the same content are equal, whatever their names. Make it by `Sound.of`.

    key        hash of the content: of the file's bytes, or of the samples
    name       for people: the file's name, or "sound"
    format     WAV, MP3, FLAC, or samples
    n_samples  samples at 16 kHz
    data       the file's bytes; empty for a sound made from samples
    """

    key: str
    name: str = field(compare=False)
    format: str = field(compare=False)
    n_samples: int = field(compare=False)
    data: bytes = field(compare=False, repr=False)
    _header: SoundHeader | None = field(default=None, compare=False, repr=False)
    _samples: Samples | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, value: SoundSource, name: str = "") -> Sound:
        """A sound from a path, bytes of a file, or float32[samples], mono at 16 kHz between -1 and 1.

        The header is read, the samples are not. `name`: instead of the file's. Raises BadSound for what is none, too
        large or too long, BadSetting where miniaudio or soxr is missing.
        """
        if isinstance(value, Sound):
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return cls._of_file(bytes(value), name or "sound")
        if isinstance(value, np.ndarray):
            return cls._of_samples(_checked(value, name or "sound"), name or "sound")
        if isinstance(value, (str, os.PathLike)):
            path = Path(value)
            return cls._of_file(read_media(path, MOST_BYTES, BadSound, "sounds"), name or path.name)
        raise BadSound(f"{type(value).__name__} is no sound: give a path, bytes or float32[samples] at 16 kHz")

    @classmethod
    def _of_file(cls, data: bytes, name: str) -> Sound:
        header = header_of(data, name)
        key = hashlib.blake2b(data, digest_size=16).hexdigest()
        return cls(key, name, header.format, header.n_samples, data, header)

    @classmethod
    def _of_samples(cls, samples: Samples, name: str) -> Sound:
        samples.setflags(write=False)
        digest = hashlib.blake2b(b"samples ", digest_size=16)
        digest.update(samples.data)
        return cls(digest.hexdigest(), name, "samples", len(samples), b"", _samples=samples)

    @property
    def seconds(self) -> float:
        """How long the sound is."""
        return self.n_samples / RATE

    def samples(self) -> Samples:
        """The samples, mono at 16 kHz between -1 and 1: float32[n_samples]. Decodes a file anew each time.

        Raises BadSound.
        """
        if self._samples is not None:
            return self._samples
        assert self._header is not None
        return decoded(self.data, self._header, self.name)


def _checked(array: NDArray[np.generic], name: str) -> Samples:
    """An array of samples, a copy."""
    if array.dtype not in (np.float32, np.float64) or array.ndim != 1:
        raise BadSound(f"{name} is {array.dtype}{list(array.shape)}; sounds are float32[samples], mono at 16 kHz")
    if not array.size:
        raise BadSound(f"{name} has no samples")
    require_length(array.size / RATE, name)
    if not np.isfinite(array).all():
        raise BadSound(f"{name} has samples that are no numbers")
    peak = float(np.abs(array).max())
    if peak > LOUDEST:
        raise BadSound(f"{name} has samples of up to {peak:.5g}; they lie between -1 and 1")
    return np.clip(array.astype(np.float32), -1, 1)
