"""Hostile files: one line of BadSound, soon, without memory and without anything printed."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeinfer import Sound
from edgeinfer.errors import BadSound
from tests.sounds import SOUNDS, tone, wav, wav_of

MEASURED = """
import re, sys
from pathlib import Path
from edgeinfer import Sound
from edgeinfer.errors import BadSound

def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

Sound.of(sys.argv[1]).samples()
before = peak_kib()
for path in sys.argv[2:]:
    try:
        Sound.of(path).samples()
        print("decoded", path)
    except BadSound as reason:
        print(str(reason))
print((peak_kib() - before) // 1024)
"""
"""Reads sounds in a process of its own: says why each is refused, and by how many MiB its memory grew."""

SLOW_FRAME = bytes((0xFF, 0xE3, 0x18, 0xC0)) + bytes(68)
"""72 ms of MP3: 8 kbit/s at 8 kHz."""


def flac() -> bytes:
    """A valid file."""
    return (SOUNDS / "chirp.flac").read_bytes()


def flac_header(n_frames: int = 11_025, rate: int = 22_050, channels: int = 2) -> bytes:
    """The same with another header: samples of each channel (36 bits), rate (20 bits), channels (3 bits)."""
    packed = rate << 44 | (channels - 1) << 41 | 15 << 36 | n_frames
    return flac()[:18] + packed.to_bytes(8, "big") + flac()[26:]


def noise(n: int) -> bytes:
    """Random bytes."""
    return np.random.default_rng(3).integers(0, 256, n, np.uint8).tobytes()


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "text": (lambda: b"hello", "is no known sound; what can be read is WAV, MP3 or FLAC"),
    "ogg": (lambda: (SOUNDS / "chirp.ogg").read_bytes(), r"is Ogg \(Vorbis or Opus\); what"),
    "m4a": (lambda: b"\x00\x00\x00\x18ftypM4A " + bytes(64), "is MP4"),
    "webm": (lambda: b"\x1aE\xdf\xa3" + bytes(64), "is WebM or Matroska"),
    "webp": (lambda: b"RIFF\x00\x00\x00\x00WEBP", "is no known sound"),
    "wav without a data chunk": (lambda: wav(tone())[:36], "cannot be decoded"),
    "wav without samples": (lambda: wav_of(b""), "has no samples"),
    "wav of no channels": (lambda: wav_of(bytes(100), channels=0), "cannot be decoded"),
    "wav of 9 channels": (lambda: wav_of(bytes(180), channels=9), "9 channels; sounds may have up to 8"),
    "wav of 65,535 channels": (lambda: wav_of(bytes(100), channels=65_535), "cannot be decoded|channels"),
    "wav of no rate": (lambda: wav_of(bytes(100), rate=0), "cannot be decoded"),
    "wav of 1 Hz": (lambda: wav_of(bytes(100), rate=1), "1 samples per second; sounds may have 4000 to 384000"),
    "wav of 4 GHz": (lambda: wav_of(bytes(100), rate=2**32 - 1), "cannot be decoded|per second"),
    "wav of 0 bits": (lambda: wav_of(bytes(100), bits=0), "cannot be decoded"),
    "wav of ADPCM without blocks": (lambda: wav_of(bytes(100), kind=2), "lasts|cannot be decoded"),
    "wav of MP3": (lambda: wav_of(bytes(100_000), kind=85), "cannot be decoded|ends after 0.0"),
    "wav of NaN": (
        lambda: wav(np.full((9_000, 1), np.nan), bits=32, floats=True),
        "has samples that are no numbers",
    ),
    "wav of an hour": (lambda: wav_of(bytes(4_000 * 3_600), rate=4_000, bits=8), "lasts 60 minutes; sounds may last"),
    "rf64 of 2^62 bytes": (
        lambda: (
            b"RF64\xff\xff\xff\xffWAVEds64"
            + struct.pack("<IQQQI", 28, 1 << 62, 1 << 62, 1 << 61, 0)
            + wav(tone())[12:40]
            + b"\xff\xff\xff\xff"
            + bytes(9)
        ),
        "lasts|cannot be decoded|ends after|no samples",
    ),
    "mp3 of noise": (lambda: b"ID3" + noise(60 << 20), "cannot be decoded"),
    "mp3 of noise without a tag": (lambda: b"\xff\xfb\x90\x00" + noise(60 << 20), "cannot be decoded"),
    "mp3 of beginnings": (lambda: b"\xff\xfb" * (30 << 20), "cannot be decoded"),
    "mp3 of one frame's beginning": (lambda: b"\xff\xfb\x90\x00" + bytes(60 << 20), "cannot be decoded"),
    "mp3 with a tag of 256 MB": (lambda: b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + bytes(1 << 20), "cannot be decoded"),
    "mp3 of 17 hours": (lambda: SLOW_FRAME * 850_000, "lasts 17.0 hours; sounds may last up to 30 minutes"),
    "flac of 900 hours": (lambda: flac_header(n_frames=2**36 - 1), "lasts 865.7 hours"),
    "flac that is cut": (lambda: flac()[:6_000], "ends after 0.[0-9] of 0.5 seconds; it is damaged"),
    "flac of a longer header": (lambda: flac_header(n_frames=1_000_000), "ends after 0.5 of 45.4 seconds"),
    "flac of 1.8 billion samples": (
        lambda: flac_header(n_frames=655_350 * 343, rate=384_000, channels=8),
        "1798 million samples in 8 channels",
    ),
    "flac of no rate": (lambda: flac_header(rate=0), "cannot be decoded|per second"),
    "flac of noise": (lambda: b"fLaC" + noise(60 << 20), "cannot be decoded"),
    "flac of a million blocks": (lambda: flac()[:42] + b"\x01\x00\x00\x00" * 1_000_000, "cannot be decoded"),
    "flac with a seek table of 16 MB": (
        lambda: flac()[:4] + b"\x00" + flac()[5:42] + b"\x83\xff\xff\xff" + bytes(9),
        "cannot be decoded",
    ),
    "more than 64 MB": (lambda: b"ID3" + bytes(80 << 20), "has 84 MB; sounds may have up to 67 MB"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files, named by number."""
    folder = tmp_path_factory.mktemp("hostile")
    for number, (make, _) in enumerate(FILES.values()):
        (folder / f"{number}.mp3").write_bytes(make())
    (folder / "plain.wav").write_bytes(wav(tone(rate=8_000), 8_000))
    return folder


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_one_line(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = folder / f"{list(FILES).index(name)}.mp3"
    with pytest.raises(BadSound, match=FILES[name][1]) as caught:
        Sound.of(path).samples()
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    assert len(str(caught.value)) < 300
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory of Linux")
def test_hostile_files_take_no_memory(folder: Path) -> None:
    paths = [str(folder / f"{number}.mp3") for number in range(len(FILES))]
    command = [sys.executable, "-W", "error", "-c", MEASURED, str(folder / "plain.wav"), *paths]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    told = ran.stdout.splitlines()
    assert len(told) == len(FILES) + 1
    assert not [line for line in told if line.startswith("decoded")]
    assert ran.stderr == ""
    assert int(told[-1]) < 150  # of which 64 MB are the file


def test_harmless_oddities_are_read() -> None:
    data = wav(tone())
    streamed = data[:40] + b"\xff\xff\xff\xff" + data[44:]
    assert np.array_equal(Sound.of(streamed).samples(), Sound.of(data).samples())
    assert Sound.of(data[:-7_000]).n_samples == 4_500
    mp3 = (SOUNDS / "chirp.mp3").read_bytes()
    tagged = b"ID3\x04\x00\x00\x00\x00\x02\x00" + bytes(256) + mp3 + b"TAG" + bytes(125)
    assert np.abs(Sound.of(tagged).samples() - Sound.of(mp3).samples()).max() < 1e-6


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(BadSound, match="is no file"):
        Sound.of(tmp_path)
    with pytest.raises(BadSound, match=r"none\.wav cannot be read: No such file"):
        Sound.of(tmp_path / "none.wav")
    with pytest.raises(BadSound, match="cannot be read"):
        Sound.of("a\0b.wav")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "fifo.wav")
        with pytest.raises(BadSound, match="is no file"):
            Sound.of(tmp_path / "fifo.wav")
