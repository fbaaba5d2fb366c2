"""Sound files for tests, made without a library."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

SOUNDS = Path(__file__).parent / "golden" / "data" / "sound_files"


def tone(seconds: float = 0.5, rate: int = 16_000, channels: int = 1) -> np.ndarray:
    """A tone and a little noise, other in each channel: float32[T, channels]."""
    t = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(rate + channels).normal(0, 0.02, (t.size, channels))
    pitch = 300 * (1 + np.arange(channels))
    return (0.5 * np.sin(2 * np.pi * pitch * t[:, None]) + noise).astype(np.float32)


def wav(samples: np.ndarray, rate: int = 16_000, bits: int = 16, floats: bool = False) -> bytes:
    """A WAV file of float[T, channels] between -1 and 1."""
    if floats:
        data = samples.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        data = (np.round(samples * 127) + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(samples.astype(np.float64) * (2 ** (bits - 1) - 1)).astype("<i4")
        data = np.ascontiguousarray(whole).view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()
    return wav_of(data, rate, samples.shape[1], bits, 3 if floats else 1)


def wav_of(data: bytes, rate: int = 16_000, channels: int = 1, bits: int = 16, kind: int = 1) -> bytes:
    """A WAV file with some bytes as its data."""
    width = channels * bits // 8
    kind_chunk = struct.pack("<IHHIIHH", 16, kind, channels, rate, rate * width & 0xFFFFFFFF, width & 0xFFFF, bits)
    return (
        b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + kind_chunk + b"data" + struct.pack("<I", len(data))
    ) + data
