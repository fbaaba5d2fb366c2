"""Sounds of all formats that are read."""

from __future__ import annotations

import io
import wave

from edgeinfer.models.sounds.sound import Sound


def seeds() -> list[bytes]:
    """A tenth of a second in WAV, of one and of two channels."""
    found = []
    for n_channels in (1, 2):
        kept = io.BytesIO()
        with wave.open(kept, "wb") as file:
            file.setnchannels(n_channels)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(bytes(range(256)) * 12)
        found.append(kept.getvalue())
    return found


def run(data: bytes) -> None:
    """Read its header, and its samples."""
    Sound.of(data).samples()
