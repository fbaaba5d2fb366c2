"""Which files are sounds, by their content, and sounds as texts: base64 in JSON, data URLs in saved chats.

In: the first bytes of a file, paths, texts. Out: whether it is a sound, whatever its name; bytes. What a file that
claims to be one really holds is seen when it is decoded. Decodes nothing.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from edgeinfer.app.image_files import PROBE_BYTES, data_of_url, is_data_url
from edgeinfer.errors import BadImage, BadSound

_BEGINNINGS = (b"ID3", b"fLaC", b"OggS", b"#!AMR", b"MThd")
"""Of MP3 with a tag and of FLAC; the others are said to be unreadable by those who decode them."""
TYPES = {"WAV": "wav", "MP3": "mpeg", "FLAC": "flac"}
"""Media types of sound formats, after `audio/`."""


def is_sound(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes is a sound."""
    if beginning.startswith(_BEGINNINGS):
        return True
    if beginning[:4] in (b"RIFF", b"RF64"):
        return beginning[8:12] == b"WAVE"
    if beginning[:4] == b"FORM":
        return beginning[8:12] in (b"AIFF", b"AIFC")
    if beginning[4:8] == b"ftyp":
        return beginning[8:12] in (b"M4A ", b"M4B ")
    return len(beginning) > 2 and beginning[0] == 0xFF and beginning[1] & 0xE6 == 0xE2  # a frame of MP3


def is_sound_file(path: Path) -> bool:
    """Whether a path is that of a sound; one that cannot be read is not. Opens only plain files."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return is_sound(file.read(PROBE_BYTES))
    except (OSError, ValueError):
        return False


def sound_url(data: bytes, form: str) -> str:
    """The bytes of a sound file as a data URL. `form`: its format, a key of TYPES."""
    return f"data:audio/{TYPES.get(form, 'wav')};base64,{base64.b64encode(data).decode('ascii')}"


def data_of_sound(text: str) -> bytes:
    """The bytes in base64, or in a data URL. Raises BadSound if it is neither."""
    try:
        return data_of_url(text) if is_data_url(text) else base64.b64decode("".join(text.split()), validate=True)
    except (BadImage, binascii.Error, ValueError):
        raise BadSound("the sound is not valid base64; for a file give its path") from None
