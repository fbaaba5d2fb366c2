"""Which files are sounds, by their beginnings, and sounds as texts."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from edgeinfer.app.image_files import is_image
from edgeinfer.app.sound_files import data_of_sound, is_sound, is_sound_file, sound_url
from edgeinfer.errors import BadSound
from tests.pictures import picture
from tests.sounds import SOUNDS, tone, wav


@pytest.mark.parametrize("name", ["chirp.mp3", "chirp.flac", "chirp.ogg"])
def test_a_file_is_known_by_its_content(name: str, tmp_path: Path) -> None:
    data = (SOUNDS / name).read_bytes()
    (tmp_path / "notes.txt").write_bytes(data)
    assert is_sound_file(tmp_path / "notes.txt")
    assert not is_image(data)


@pytest.mark.parametrize(
    ("beginning", "expected"),
    [
        (wav(tone()), True),
        (b"\x00\x00\x00\x18ftypM4A ", True),
        (b"FORM\x00\x00\x00\x00AIFF", True),
        (b"\x00\x00\x00\x18ftypavif", False),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", False),
        (b"FORM and content", False),
        ("a".encode("utf-16"), False),
        (b"\xff\xd8\xff\xe0", False),  # JPEG
        (b"\xff", False),
        (b"", False),
        (picture(), False),
        (b"I'd like to hear", False),
    ],
)
def test_beginnings(beginning: bytes, expected: bool) -> None:
    assert is_sound(beginning) is expected


def test_what_is_no_file_is_no_sound(tmp_path: Path) -> None:
    assert not is_sound_file(tmp_path)
    assert not is_sound_file(tmp_path / "gone.wav")
    assert not is_sound_file(Path("a\0b"))


def test_sounds_as_texts() -> None:
    data = wav(tone())
    assert sound_url(data, "WAV").startswith("data:audio/wav;base64,UklGR")
    assert sound_url(data, "MP3").startswith("data:audio/mpeg;")
    assert data_of_sound(sound_url(data, "WAV")) == data
    assert data_of_sound(base64.encodebytes(data).decode()) == data
    for text in ("?", "data:audio/wav,abc", "data:audio/wav;base64,?"):
        with pytest.raises(BadSound, match="not valid base64"):
            data_of_sound(text)
