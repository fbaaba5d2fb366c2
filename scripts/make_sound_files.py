"""Writes tests/golden/data/sound_files: a chirp as MP3, FLAC and Ogg Vorbis, and the mean of channels by libsndfile.

Needs soundfile 0.14 (libsndfile 1.2.2: LAME, mpg123, libFLAC), which the tests do not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

FOLDER = Path(__file__).parents[1] / "tests/golden/data/sound_files"
RATE = 22_050


def chirp() -> np.ndarray:
    """Half a second of two channels, from 200 Hz up: float32[T, 2]."""
    t = np.arange(RATE // 2) / RATE
    left = 0.5 * np.sin(2 * np.pi * (200 + 1500 * t) * t) * np.hanning(t.size)
    return np.stack([left, 0.5 * left[::-1]], axis=1).astype(np.float32)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, form, kind in (("mp3", "MP3", "MPEG_LAYER_III"), ("flac", "FLAC", "PCM_16"), ("ogg", "OGG", "VORBIS")):
        path = FOLDER / f"chirp.{name}"
        soundfile.write(path, chirp(), RATE, format=form, subtype=kind)
        expected[name] = soundfile.read(path, dtype="float32")[0].mean(axis=1)
    np.savez_compressed(FOLDER / "chirp.npz", mp3=expected["mp3"], flac=expected["flac"])


if __name__ == "__main__":
    main()
