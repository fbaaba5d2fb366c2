"""Damaged files: cut anywhere and with any bytes changed they give BadSound or a sound, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer import Sound
from edgeinfer.errors import BadSound
from tests.sounds import SOUNDS, tone, wav

N_DAMAGED = 400
FILES = {
    "mp3": (SOUNDS / "chirp.mp3").read_bytes(),
    "flac": (SOUNDS / "chirp.flac").read_bytes(),
    "wav": wav(tone(0.1)),
    "wav of 24 bits": wav(tone(0.1, 44_100, 2), 44_100, 24),
    "wav of floats": wav(tone(0.1, 8_000, 3), 8_000, 32, floats=True),
}


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """A file cut, with some bytes changed, mostly near its start, or with a part left out."""
    changed = bytearray(data)
    kind = random.integers(4)
    if kind == 0:
        return data[: int(random.integers(len(data)))]
    if kind == 1:
        start, end = sorted(random.integers(0, len(data), 2))
        return data[:start] + data[end:]
    most = len(data) if kind == 2 else min(len(data), 60)
    for _ in range(int(random.integers(1, 5))):
        changed[int(random.integers(most))] = int(random.choice([0, 1, 0x7F, 0x80, 0xFF, int(random.integers(256))]))
    return bytes(changed)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_a_sound_or_bad(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(len(FILES[name]))
    assert Sound.of(FILES[name]).samples().size
    told = []
    for _ in range(N_DAMAGED):
        try:
            sound = Sound.of(damaged(FILES[name], random))
            samples = sound.samples()
            assert samples.shape == (sound.n_samples,)
            assert np.abs(samples).max() <= 1  # false of NaN, too
        except BadSound as reason:
            told.append(str(reason))
    assert told
    assert not any("\n" in line for line in told)
    assert capfd.readouterr() == ("", "")
