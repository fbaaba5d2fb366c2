"""Files that requests have in them as base64.

In: the text of a field, what kind of file it is. Out: its bytes, no more than one file may have. APIError says which
field is wrong, with OpenAI's codes where there are some. Decodes no image and no sound.
"""

from __future__ import annotations

import binascii
from typing import Literal

from edgeinfer.app.server.errors import APIError
from edgeinfer.models.images import decoding as image_decoding
from edgeinfer.models.sounds import decoding as sound_decoding

CHUNK = 1 << 22
"""Characters of base64 that are decoded at a time, between which other threads run; a multiple of 4."""
MOST_BYTES = {"image": image_decoding.MOST_BYTES, "audio": sound_decoding.MOST_BYTES}
_NOUNS = {"image": "images", "audio": "sounds"}

Kind = Literal["image", "audio"]


def decoded_base64(text: str, place: str, kind: Kind) -> bytes:
    """The bytes of a file of some kind, in which line breaks alone are overlooked. Raises APIError."""
    if "\n" in text or "\r" in text:
        text = text.replace("\n", "").replace("\r", "")
    most_bytes = MOST_BYTES[kind]
    if len(text) > most_bytes // 3 * 4 + 4:
        told = f"has {0.75 * len(text) / 1e6:.0f} MB; {_NOUNS[kind]} may have up to {most_bytes / 1e6:.0f} MB"
        raise APIError(400, f"{place} {told}", f"{kind}_too_large", place)
    if len(text) % 4:
        raise bad_base64(place, f"is cut off: {len(text)} characters of base64 are no multiple of 4", kind)
    if "=" in text[:-2]:
        raise bad_base64(place, "has = before its end, which base64 has not", kind)
    try:
        chunks = [
            binascii.a2b_base64(text[start : start + CHUNK], strict_mode=True) for start in range(0, len(text), CHUNK)
        ]
    except ValueError:  # also of characters that are not ASCII
        told = "has characters that base64 has not (there are A-Z, a-z, 0-9, + and /)"
        raise bad_base64(place, told, kind) from None
    return b"".join(chunks)


def bad_base64(place: str, told: str, kind: Kind) -> APIError:
    """The error of a field that is no base64. `told`: why."""
    return APIError(400, f"{place} {told}", f"invalid_base64_{kind}", place)
