"""Log-mel spectra as Whisper's feature extractor makes them.

In: float32[N] of mono sound at 16 kHz. Out: float32[N // HOP, M], a row of M mel bins every 10 ms. Sources: Whisper
(arXiv 2212.04356); the mel scale and the areas of its filters are those of Slaney's Auditory Toolbox.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.step import Floats
from edgeinfer.models.sounds.decoding import RATE

HOP = 160
WINDOW = 400
LEAST_SAMPLES = WINDOW
"""Fewest samples of a sound: one window."""
FLOOR, RANGE = 1e-10, 8.0
"""Least power, and how far below the loudest bin, as powers of ten, all others may be."""
_LINEAR_HZ, _PER_HZ, _LOG_STEP = 1000.0, 3 / 200, math.log(6.4) / 27
_BLOCK = 1 << 10
"""Frames that are transformed at a time."""


def log_mel(samples: Floats, n_mels: int) -> Floats:
    """The log-mel spectrum of a sound of at least LEAST_SAMPLES samples: float32[N // HOP, n_mels].

    The sound is reflected at both ends, so that frames are centred.
    """
    padded = np.pad(samples, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][: len(samples) // HOP]
    window, filters = np.hanning(WINDOW + 1)[:-1], mel_filters(n_mels)
    found = np.empty((len(frames), n_mels), np.float32)
    for first in range(0, len(frames), _BLOCK):
        spectrum = np.fft.rfft(frames[first : first + _BLOCK] * window)
        power = spectrum.real**2 + spectrum.imag**2
        found[first : first + _BLOCK] = np.log10(np.maximum(power @ filters, FLOOR))
    np.maximum(found, found.max() - np.float32(RANGE), out=found)
    found += np.float32(4)
    found /= np.float32(4)
    return found


def mel_filters(n_mels: int) -> NDArray[np.float64]:
    """Triangular filters of equal area from 0 to 8 kHz: float64[WINDOW // 2 + 1, n_mels]."""
    edges = _hertz(np.linspace(0.0, _mel(RATE / 2), n_mels + 2))
    bins = np.linspace(0.0, RATE / 2, WINDOW // 2 + 1)[:, None]
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    slopes = np.minimum((bins - left) / (centre - left), (right - bins) / (right - centre))
    filters: NDArray[np.float64] = np.maximum(slopes, 0.0) * (2.0 / (right - left))
    return filters


def _mel(hertz: float) -> float:
    """The mel scale at a frequency of at least _LINEAR_HZ, from where on it is logarithmic."""
    return _LINEAR_HZ * _PER_HZ + math.log(hertz / _LINEAR_HZ) / _LOG_STEP


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    bend = _LINEAR_HZ * _PER_HZ
    return np.where(mels < bend, mels / _PER_HZ, _LINEAR_HZ * np.exp((mels - bend) * _LOG_STEP))
