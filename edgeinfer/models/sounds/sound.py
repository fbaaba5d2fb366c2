"""A sound as people hand it over. In: an array. Out: `Sound`, with the name by which results are kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Union

import numpy as np

from edgeinfer.errors import BadSound
from edgeinfer.graph.step import Floats

SoundSource = Union["Sound", Floats]


@dataclass(frozen=True, slots=True)
class Sound:
    """A sound for a model, mono at 16 kHz. Make it by `Sound.of`."""

    key: str
    name: str = field(compare=False)
    format: str = field(compare=False)
    n_samples: int = field(compare=False)
    _samples: Floats = field(compare=False, repr=False)

    @property
    def seconds(self) -> float:
        return self.n_samples / 16000

    @classmethod
    def of(cls, value: SoundSource, name: str = "") -> Sound:
        """A sound from float32[N]. Raises BadSound."""
        if isinstance(value, Sound):
            return value
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype != np.float32:
            raise BadSound(f"{type(value).__name__} is no sound: give float32[samples]")
        key = hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()
        return cls(key, name or "sound", "samples", len(value), value)

    def samples(self) -> Floats:
        """The samples: float32[n_samples]."""
        return self._samples
