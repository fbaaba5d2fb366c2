"""Reads files of images and sounds: regular files of a limited size, nothing else.

In: a path, a limit, the error to raise. Out: bytes.
"""

from __future__ import annotations

import stat
from pathlib import Path

from edgeinfer.errors import EdgeInferError

LONGEST_SHOWN = 1000
"""Characters of a path that an error shows; a longer one is base64, taken for a path."""


def read_media(path: Path, most_bytes: int, refused: type[EdgeInferError], noun: str) -> bytes:
    """The bytes of a file. Raises `refused` for what is no file, without opening it. `noun`: images, sounds."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise refused(f"{path} is no file")
        if found.st_size > most_bytes:
            raise refused(f"{path} has {found.st_size / 1e6:.0f} MB; {noun} may have up to {most_bytes / 1e6:.0f} MB")
        with path.open("rb") as file:
            return file.read(most_bytes + 1)
    except (OSError, ValueError) as reason:  # ValueError: a zero in a path
        shown = str(path) if len(str(path)) <= LONGEST_SHOWN else f"{str(path)[:40]}…"
        raise refused(f"{shown} cannot be read: {getattr(reason, 'strerror', None) or reason}") from None
