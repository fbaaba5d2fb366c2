"""Which files are images, by their content, and images as texts: the data URLs of messages in JSON.

In: the first bytes of a file, paths, URLs. Out: whether it is an image, whatever its name; bytes. What a file that
claims to be one really holds is seen when it is decoded. Decodes nothing.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from edgeinfer.errors import BadImage

PROBE_BYTES = 32
"""How much of a file tells whether it is an image."""
_BEGINNINGS = (
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff",
    b"GIF87a",
    b"GIF89a",
    b"II*\x00",
    b"MM\x00*",
    b"II+\x00",
    b"MM\x00+",
)
_BOXES = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"heim", b"hevc")
"""Kinds of files in boxes that hold a picture; HEIC is said to be unreadable by those who decode it."""
_DATA, _BASE64 = "data:", ";base64"
TYPES = {"PNG": "png", "JPEG": "jpeg", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tiff", "AVIF": "avif"}
"""Media types of image formats, after `image/`."""


def is_image(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes is an image."""
    if beginning.startswith(_BEGINNINGS):
        return True
    if beginning[:4] == b"RIFF":
        return beginning[8:12] == b"WEBP"
    if beginning[:2] == b"BM":  # texts begin so, too
        return beginning[6:10] == bytes(4)
    return beginning[4:8] == b"ftyp" and beginning[8:12] in _BOXES


def is_image_file(path: Path) -> bool:
    """Whether a path is that of an image; one that cannot be read is not. Opens only plain files."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return is_image(file.read(PROBE_BYTES))
    except (OSError, ValueError):
        return False


def is_data_url(text: str) -> bool:
    """Whether a text is a data URL."""
    return text[: len(_DATA)].lower() == _DATA


def data_url(data: bytes, form: str) -> str:
    """The bytes of an image file as a data URL. `form`: its format, a key of TYPES."""
    return f"{_DATA}image/{TYPES.get(form, 'png')}{_BASE64},{base64.b64encode(data).decode('ascii')}"


def data_of_url(url: str) -> bytes:
    """The bytes in a data URL. Raises BadImage if it is none, or not in base64."""
    head, comma, body = url.partition(",")
    if not is_data_url(head) or not comma or not head.lower().endswith(_BASE64):
        raise BadImage("an image's URL must be a data URL, data:image/png;base64,…; for a file give its path")
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadImage("the image's data URL is not valid base64") from None
