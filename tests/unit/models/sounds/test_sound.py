"""`Sound`: what it is made from, its name and key, its length before decoding, its samples at 16 kHz."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soxr

import edgeinfer
from edgeinfer import Sound
from edgeinfer.errors import BadSetting, BadSound
from tests.sounds import SOUNDS, tone, wav


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 8])
@pytest.mark.parametrize(
    ("bits", "floats", "error"),
    [(8, False, 1.2e-2), (16, False, 4e-5), (24, False, 2e-7), (32, False, 1e-7), (32, True, 1e-7), (64, True, 1e-7)],
)
def test_a_wav_is_the_mean_of_its_channels(channels: int, bits: int, floats: bool, error: float) -> None:
    source = tone(channels=channels)
    sound = Sound.of(wav(source, 16_000, bits, floats))
    assert (sound.format, sound.name, sound.n_samples, sound.seconds) == ("WAV", "sound", 8_000, 0.5)
    samples = sound.samples()
    assert (samples.dtype, samples.shape) == (np.float32, (8_000,))
    assert np.abs(samples - source.mean(axis=1)).max() < error


@pytest.mark.parametrize("rate", [4_000, 8_000, 11_025, 22_050, 24_000, 44_100, 44_101, 48_000, 96_000, 384_000])
def test_other_rates_are_resampled_as_librosa_does(rate: int) -> None:
    source = tone(1.23, rate, 2)
    sound = Sound.of(wav(source, rate, 32, floats=True))
    expected = soxr.resample(source.mean(axis=1), rate, 16_000, quality="HQ")
    assert sound.n_samples == len(expected)
    assert np.abs(sound.samples() - expected).max() < 1e-6


def test_a_tone_beyond_8_khz_is_silent() -> None:
    t = np.arange(44_100) / 44_100
    samples = Sound.of(wav(np.sin(2 * np.pi * 9_500 * t)[:, None], 44_100, 32, floats=True)).samples()
    assert np.abs(samples[1_000:-1_000]).max() < 1e-4


@pytest.mark.parametrize(("form", "error"), [("mp3", 1e-4), ("flac", 1e-6)])
def test_mp3_and_flac_are_what_libsndfile_decodes(form: str, error: float) -> None:
    with np.load(SOUNDS / "chirp.npz") as decoded:
        expected = soxr.resample(decoded[form], 22_050, 16_000, quality="HQ")
    sound = Sound.of(SOUNDS / f"chirp.{form}")
    assert (sound.format, sound.name, sound.n_samples) == (form.upper(), f"chirp.{form}", 8_000)
    assert np.abs(sound.samples() - expected).max() < error


def test_a_flac_that_does_not_say_its_length_is_counted() -> None:
    data = bytearray((SOUNDS / "chirp.flac").read_bytes())
    data[21] &= 0xF0  # the total is the last 36 bits of bytes 18 to 25
    data[22:26] = bytes(4)
    sound = Sound.of(bytes(data))
    assert sound.n_samples == 8_000
    assert np.array_equal(sound.samples(), Sound.of(SOUNDS / "chirp.flac").samples())


def test_a_file_is_named_and_keyed_by_its_content(tmp_path: Path) -> None:
    data = wav(tone())
    path = tmp_path / "A talk.wav"
    path.write_bytes(data)
    sound, same, other = Sound.of(str(path)), Sound.of(data, "B"), Sound.of(wav(tone(0.25)))
    assert (sound.name, same.name, sound.data) == ("A talk.wav", "B", data)
    assert sound == same == Sound.of(path) == Sound.of(memoryview(data))
    assert len({sound, same, other}) == 2
    assert Sound.of(sound) is sound
    assert repr(sound) == f"Sound(key='{sound.key}', name='A talk.wav', format='WAV', n_samples=8000)"


def test_an_array_is_copied_and_keyed_by_its_samples() -> None:
    array = tone()[:, 0].copy()
    sound = Sound.of(array)
    assert sound == Sound.of(array.astype(np.float64))
    assert sound != Sound.of(array[1:])
    before, array[:] = array.copy(), 0
    assert np.array_equal(sound.samples(), before)
    assert (sound.n_samples, sound.seconds, sound.format, sound.data) == (8_000, 0.5, "samples", b"")
    assert not sound.samples().flags.writeable
    assert Sound.of(np.float32([0.5, 1.01, -1.2])).samples().tolist() == [0.5, 1, -1]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros(9, np.int16), r"sound is int16\[9\]; sounds are float32\[samples\], mono at 16 kHz"),
        (np.zeros((9, 2), np.float32), r"float32\[9, 2\]"),
        (np.zeros(0, np.float32), "sound has no samples"),
        (np.float32([0, np.nan]), "no numbers"),
        (np.float32([0, np.inf]), "no numbers"),
        (np.float32([0, -32768]), "samples of up to 32768; they lie between -1 and 1"),
        (np.broadcast_to(np.float32(0), 16_000 * 3_600), "lasts 60 minutes; sounds may last up to 30 minutes"),
        (7, "int is no sound: give a path, bytes"),
        (None, "NoneType is no sound"),
    ],
)
def test_what_is_no_sound_is_refused(value: object, told: str) -> None:
    with pytest.raises(BadSound, match=told):
        Sound.of(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("missing", ["miniaudio", "soxr"])
def test_without_the_libraries_files_are_refused_and_arrays_are_not(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(BadSetting, match=r"sounds need miniaudio and soxr: pip install 'edgeinfer\[sound\]'"):
        Sound.of(wav(tone(rate=8_000), 8_000)).samples()
    assert Sound.of(tone()[:, 0]).n_samples == 8_000


def test_the_libraries_are_loaded_with_the_first_file() -> None:
    code = "import sys, edgeinfer; edgeinfer.Sound; print({'miniaudio', 'soxr'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
    assert issubclass(edgeinfer.BadSound, edgeinfer.EdgeInferError)


def test_threads_decode_at_once() -> None:
    sound = Sound.of(SOUNDS / "chirp.mp3")
    expected = sound.samples()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: sound.samples(), range(64)))
    assert all(np.array_equal(each, expected) for each in found)
