"""Metadata values: their types, how to skip one, and how to decode it.

In: a cursor at a value, or the bytes of one. Out: nothing (skipping), or Python and NumPy values (decoding).
Independent of keys.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.models.gguf.cursor import Cursor, decode_strings, split_strings

MetadataValue: TypeAlias = "bool | int | float | str | NDArray[Any] | list[str] | list[MetadataValue]"

BOOL, STRING, ARRAY = 7, 8, 9

_ARRAY_HEAD = struct.Struct("<IQ")

_NUMBERS: Mapping[int, np.dtype[Any]] = MappingProxyType(
    {
        0: np.dtype("u1"),
        1: np.dtype("i1"),
        2: np.dtype("<u2"),
        3: np.dtype("<i2"),
        4: np.dtype("<u4"),
        5: np.dtype("<i4"),
        6: np.dtype("<f4"),
        BOOL: np.dtype("u1"),
        10: np.dtype("<u8"),
        11: np.dtype("<i8"),
        12: np.dtype("<f8"),
    }
)

DEPTH_MAX = 4
"""Deepest nesting of arrays."""
ITEMS_MAX = 1 << 24
"""Most strings in one header: far above any vocabulary, yet skipped in seconds at worst."""
_ARRAY_ITEMS = 64
"""A nested array counts as this many strings, because skipping one costs that much more."""


class Skipper:
    """Skips values while checking them; counts strings and arrays over a whole header."""

    __slots__ = ("_cursor", "_items_left")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._items_left = ITEMS_MAX

    def skip(self, kind: int, what: str) -> None:
        """Skip a value of type `kind`. Raises BadGGUF for an unknown type, a bad length or too many items."""
        if kind in _NUMBERS:
            self._cursor.take(_NUMBERS[kind].itemsize, what)
        elif kind == STRING:
            self._cursor.take(self._cursor.u64(f"the length of {what}"), what)
        elif kind == ARRAY:
            self._skip_array(what, 1)
        else:
            raise self._cursor.bad(f"{what} has value type {kind}; types are 0 to 12")

    def _skip_array(self, what: str, depth: int) -> None:
        cursor = self._cursor
        if depth > DEPTH_MAX:
            raise cursor.bad(f"{what} nests arrays deeper than {DEPTH_MAX}")
        kind = cursor.u32(f"the element type of {what}")
        count = cursor.u64(f"the length of {what}")
        if kind in _NUMBERS:
            cursor.take(count * _NUMBERS[kind].itemsize, what)
            return
        if kind not in (STRING, ARRAY):
            raise cursor.bad(f"{what} has elements of value type {kind}; types are 0 to 12")
        least_bytes = 8 if kind == STRING else 12
        if count * least_bytes > cursor.left_bytes:
            raise cursor.bad(f"{what} claims {count} elements, more than the rest of the file can hold")
        self._items_left -= count if kind == STRING else count * _ARRAY_ITEMS
        if self._items_left < 0:
            raise cursor.bad(f"{what}, of {count} elements, is beyond what any vocabulary needs")
        if kind == STRING:
            cursor.skip_strings(count, what)
        else:
            for _ in range(count):
                self._skip_array(what, depth + 1)


def decode(kind: int, blob: bytes) -> MetadataValue:
    """The value of type `kind` with bytes `blob`, which are already checked.

    Numbers become int, float or bool; strings str; arrays of numbers a read-only array of that type; arrays of strings
    list[str]; arrays of arrays a list. Invalid UTF-8 becomes U+FFFD.
    """
    if kind == STRING:
        return blob[8:].decode(errors="replace")
    if kind == ARRAY:
        return _decode_array(blob, 0)[0]
    number: bool | int | float = np.frombuffer(blob, _NUMBERS[kind])[0].item()
    return bool(number) if kind == BOOL else number


def decode_raw_strings(blob: bytes) -> list[bytes]:
    """The undecoded strings of an array of strings with bytes `blob`, already checked; [] for other arrays."""
    kind, count = _ARRAY_HEAD.unpack_from(blob)
    return split_strings(blob, _ARRAY_HEAD.size, count)[0] if kind == STRING else []


def _decode_array(blob: bytes, position: int) -> tuple[MetadataValue, int]:
    kind, count = _ARRAY_HEAD.unpack_from(blob, position)
    position += _ARRAY_HEAD.size
    if kind == STRING:
        return decode_strings(blob, position, count)
    if kind == ARRAY:
        arrays: list[MetadataValue] = []
        for _ in range(count):
            array, position = _decode_array(blob, position)
            arrays.append(array)
        return arrays, position
    end = position + count * _NUMBERS[kind].itemsize
    stored: NDArray[Any] = np.frombuffer(blob[position:end], _NUMBERS[kind])
    numbers = stored != 0 if kind == BOOL else stored.astype(stored.dtype.newbyteorder("="))
    numbers.setflags(write=False)
    return numbers, end
