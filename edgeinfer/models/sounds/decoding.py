"""Decodes sound files with miniaudio; hostile ones are refused before anything large is computed or kept.

In: the bytes of a file. Out: its header; its samples, mono at 16 kHz. Limits hold before samples are decoded: on bytes,
seconds, channels and rate. Channels are averaged; other rates become 16 kHz by soxr's "HQ", as librosa and with it the
processors of transformers do. Files are decoded by the piece. Both libraries are imported with the first file. Ogg is
refused: the decoder of Vorbis in miniaudio (stb_vorbis) writes out of bounds for damaged files. Knows no models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadSetting, BadSound

Samples = NDArray[np.float32]

RATE = 16_000
"""Samples per second that models hear."""
MOST_BYTES = 64 << 20
"""Size of the largest file."""
MOST_SECONDS = 30 * 60
"""Seconds of the longest sound, whose samples take 115 MB."""
MOST_CHANNELS = 8
RATES = (4_000, 384_000)
"""Samples per second that a file may have."""
MOST_DECODED = 400_000_000
"""Most samples of all channels that are decoded: the longest sound in stereo at 96 kHz has 346 million."""
PIECE = 16_384
"""Samples of each channel that are decoded at a time."""
MOST_MISSING = RATE // 10
"""Samples that may be missing at the end; MP3 has frames of up to 72 ms."""

READABLE = "WAV, MP3 or FLAC"
_OTHER_BEGINNINGS = (
    (b"OggS", "Ogg (Vorbis or Opus)"),
    (b"FORM", "AIFF"),
    (b"\x1aE\xdf\xa3", "WebM or Matroska"),
    (b"#!AMR", "AMR"),
    (b"\x30\x26\xb2\x75", "WMA"),
    (b"MThd", "MIDI"),
)


@dataclass(frozen=True, slots=True)
class SoundHeader:
    """What is known before decoding. `n_frames`: samples of each channel, at the file's own rate."""

    format: str
    rate: int
    n_frames: int

    @property
    def n_samples(self) -> int:
        """Samples at 16 kHz, rounded as soxr does."""
        return (2 * self.n_frames * RATE + self.rate) // (2 * self.rate)


def header_of(data: bytes, name: str) -> SoundHeader:
    """The header of a sound file. Raises BadSound, and BadSetting without the libraries. `name`: for messages."""
    if len(data) > MOST_BYTES:
        raise BadSound(f"{name} has {len(data) / 1e6:.0f} MB; sounds may have up to {MOST_BYTES / 1e6:.0f} MB")
    form = _format_of(data, name)
    with _guarded(name):
        import miniaudio

        read = {"WAV": miniaudio.wav_get_info, "MP3": miniaudio.mp3_get_info, "FLAC": miniaudio.flac_get_info}[form]
        info = read(data)
        n_frames, rate, n_channels = int(info.num_frames), int(info.sample_rate), int(info.nchannels)
        if not 1 <= n_channels <= MOST_CHANNELS:
            raise BadSound(f"{name} has {n_channels} channels; sounds may have up to {MOST_CHANNELS}")
        if not RATES[0] <= rate <= RATES[1]:
            raise BadSound(f"{name} has {rate} samples per second; sounds may have {RATES[0]} to {RATES[1]}")
        if form == "FLAC" and n_frames == 0:  # programs that write to a pipe do not know it
            n_frames = _counted(data, name, rate)
        require_length(n_frames / rate, name)
        if n_frames * n_channels > MOST_DECODED:
            raise BadSound(f"{name} has {n_frames * n_channels / 1e6:.0f} million samples in {n_channels} channels")
    header = SoundHeader(form, rate, n_frames)
    if header.n_samples < 1:
        raise BadSound(f"{name} has no samples")
    return header


def decoded(data: bytes, header: SoundHeader, name: str) -> Samples:
    """The samples of a sound file, mono at 16 kHz between -1 and 1: float32[header.n_samples]. Raises BadSound."""
    samples = np.zeros(header.n_samples, np.float32)
    place = 0
    with _guarded(name):
        for piece in _at_16_khz(_pieces(data, header.rate), header.rate):
            if not np.isfinite(piece).all():
                raise BadSound(f"{name} has samples that are no numbers")
            end = min(place + len(piece), len(samples))
            np.clip(piece[: end - place], -1, 1, out=samples[place:end])
            place = end
            if place == len(samples):
                break
    if place + MOST_MISSING < len(samples):
        raise BadSound(f"{name} ends after {place / RATE:.1f} of {len(samples) / RATE:.1f} seconds; it is damaged")
    return samples


def require_length(seconds: float, name: str) -> None:
    """Raises BadSound for a sound that is too long."""
    if seconds > MOST_SECONDS:
        own = f"{seconds / 3600:.1f} hours" if seconds >= 7200 else f"{seconds / 60:.0f} minutes"
        raise BadSound(f"{name} lasts {own}; sounds may last up to {MOST_SECONDS // 60} minutes")


def _format_of(data: bytes, name: str) -> str:
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "WAV"
    if data.startswith(b"fLaC"):
        return "FLAC"
    if data.startswith(b"ID3") or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2):  # layer III
        return "MP3"
    if not data:
        raise BadSound(f"{name} is empty")
    if data[4:8] == b"ftyp":
        other = "MP4 (M4A, AAC or a video)"
    else:
        other = next((kind for start, kind in _OTHER_BEGINNINGS if data.startswith(start)), "no known sound")
    raise BadSound(f"{name} is {other}; what can be read is {READABLE}")


def _pieces(data: bytes, rate: int) -> Iterator[Samples]:
    """The samples of a file, by the piece: the mean of its channels, at its own rate."""
    import miniaudio

    for piece in miniaudio.stream_memory(data, miniaudio.SampleFormat.FLOAT32, 1, rate, frames_to_read=PIECE):
        yield np.frombuffer(piece, np.float32)


def _at_16_khz(pieces: Iterator[Samples], rate: int) -> Iterator[Samples]:
    if rate == RATE:
        yield from pieces
        return
    import soxr

    stream = soxr.ResampleStream(rate, RATE, 1, dtype="float32", quality="HQ")
    for piece in pieces:
        yield stream.resample_chunk(piece)
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)


def _counted(data: bytes, name: str, rate: int) -> int:
    """Samples of each channel of a FLAC file that does not say it, as far as it may have them."""
    n_frames = 0
    for piece in _pieces(data, rate):
        n_frames += len(piece)
        require_length(n_frames / rate, name)
    return n_frames


@contextmanager
def _guarded(name: str) -> Iterator[None]:
    """Whatever a decoder raises is BadSound."""
    try:
        yield
    except (BadSound, BadSetting):
        raise
    except ImportError:
        raise BadSetting("sounds need miniaudio and soxr: pip install 'edgeinfer[sound]'") from None
    except Exception:  # miniaudio raises errors of several kinds for damaged files
        raise BadSound(f"{name} cannot be decoded: it is damaged, or of a kind that is not supported") from None
