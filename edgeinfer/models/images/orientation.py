"""The orientation of an image, from its EXIF or XMP block: how what is stored is turned to stand upright.

In: blocks as they are in files. Out: 1 to 8, 1 where there is none or the block is damaged. Reads one entry of the
first folder of EXIF and nothing else. Source: Exif 2.32, section 4.6.4, tag 274.
"""

from __future__ import annotations

import re
import struct

import numpy as np
from numpy.typing import NDArray

UPRIGHT = 1
ORIENTATIONS = range(1, 9)
SIDEWAYS = range(5, 9)
"""Orientations that swap width and height."""
_ROWS_TURNED, _COLUMNS_TURNED = (3, 4, 6, 7), (2, 3, 7, 8)
_TAG, _SHORT = 274, 3
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')


def orientation_of(exif: bytes, xmp: bytes = b"") -> int:
    """The orientation that blocks state; EXIF goes before XMP."""
    stated = _of_exif(exif.removeprefix(b"Exif\x00\x00"))
    if stated is None:
        match = _XMP.search(xmp)
        stated = int(match[1]) if match else UPRIGHT
    return stated if stated in ORIENTATIONS else UPRIGHT


def _of_exif(block: bytes) -> int | None:
    order = {b"II*\x00": "<", b"MM\x00*": ">"}.get(block[:4])
    if order is None:
        return None
    try:
        (first,) = struct.unpack_from(f"{order}I", block, 4)
        (entries,) = struct.unpack_from(f"{order}H", block, first)
        for place in range(first + 2, first + 2 + 12 * entries, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", block, place)
            if tag == _TAG:
                return int(value) if kind == _SHORT else None
    except struct.error:
        pass
    return None


def stored_start(rows: tuple[int, int], size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Left and top, in an image as it is stored, of upright rows: the first, and the one after the last.

    `size`: width and height, as they are stored.
    """
    first, stop = rows
    if orientation in SIDEWAYS:
        return size[0] - stop if orientation in _COLUMNS_TURNED else first, 0
    return 0, size[1] - stop if orientation in _ROWS_TURNED else first


def as_stored(upright: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """A view of uint8[H, W, 3] in which an image is written as it is stored, and stands upright in the original."""
    if orientation in SIDEWAYS:
        upright = upright.transpose(1, 0, 2)
    rows = slice(None, None, -1) if orientation in _ROWS_TURNED else slice(None)
    columns = slice(None, None, -1) if orientation in _COLUMNS_TURNED else slice(None)
    return upright[rows, columns]
