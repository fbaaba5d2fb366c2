"""Metadata values of a GGUF header: a bounds-checked reading position, and how to skip a value or decode it.

In: a buffer with the first bytes of a file, and the size of the whole file; or the bytes of one value. Out: integers,
names and positions (skipping), or Python and NumPy values (decoding). Every length is checked before use, so no number
in the file can cause reads outside it or allocations beyond it. Independent of keys.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF

Buffer: TypeAlias = memoryview | mmap.mmap | bytes

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

NAME_BYTES_MAX = 65_535
"""Longest key or tensor name. Source: docs/gguf.md."""
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


class HeaderIncomplete(BadGGUF):
    """The header extends beyond the available bytes; at least `needed_bytes` of the file are needed to continue."""

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class Cursor:
    """A position in `buffer`, the first bytes of a file of `total_bytes`, called `source` in messages."""

    __slots__ = ("_end", "_total_bytes", "buffer", "position", "source")

    def __init__(self, buffer: Buffer, total_bytes: int, source: str, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position
        self.source = source
        self._total_bytes = total_bytes
        self._end = min(len(buffer), total_bytes)

    @property
    def left_bytes(self) -> int:
        """Bytes of the whole file after this position."""
        return self._total_bytes - self.position

    def take(self, count: int, what: str) -> int:
        """Skip `count` bytes and return where they start."""
        start = self.position
        if start + count > self._end:
            raise self._short(start + count, what)
        self.position = start + count
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.buffer, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.buffer, self.take(8, what))[0]
        return value

    def name(self, what: str) -> str:
        """Read a key or tensor name: 1 to NAME_BYTES_MAX bytes of UTF-8."""
        length = self.u64(f"the length of {what}")
        if not 0 < length <= NAME_BYTES_MAX:
            raise self.bad(f"{what} is {length} bytes long; names have 1 to {NAME_BYTES_MAX}")
        start = self.take(length, what)
        raw = bytes(self.buffer[start : start + length])
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"{what} is not UTF-8: {raw[:40]!r}") from None

    def skip_strings(self, count: int, what: str) -> None:
        """Skip `count` strings, each a 64-bit length and its bytes."""
        buffer, position, unpack, index = self.buffer, self.position, _U64.unpack_from, 0
        try:
            for index in range(count):  # noqa: B007 (the index tells where the loop stopped)
                position += unpack(buffer, position)[0] + 8
        except (struct.error, OverflowError):
            raise self._short(position + 8 * (count - index), what) from None
        self.take(position - self.position, what)

    def bad(self, finding: str) -> BadGGUF:
        """An error at this position, for the caller to raise."""
        return BadGGUF(f"{self.source} is not a GGUF file that can be read: {finding} (at byte {self.position})")

    def _short(self, needed_bytes: int, what: str) -> BadGGUF:
        if needed_bytes > self._total_bytes:
            return BadGGUF(
                f"{self.source} is cut short or damaged: {what}, at byte {self.position}, would end at byte "
                f"{needed_bytes}, but the file has {self._total_bytes}; fetch it again"
            )
        message = f"{self.source}: {what} ends at byte {needed_bytes} or later; only the first {self._end} are here"
        return HeaderIncomplete(message, needed_bytes)


def split_strings(blob: bytes, position: int, count: int) -> tuple[list[bytes], int]:
    """The `count` strings at `position`, whose lengths have been checked, and the position after them."""
    strings: list[bytes] = []
    unpack, append = _U64.unpack_from, strings.append
    for _ in range(count):
        first = position + 8
        position = first + unpack(blob, position)[0]
        append(blob[first:position])
    return strings, position


def decode_strings(blob: bytes, position: int, count: int) -> tuple[list[str], int]:
    """`split_strings`, decoded; invalid UTF-8 becomes U+FFFD. A single loop, because vocabularies are long."""
    strings: list[str] = []
    start, unpack, append = position, _U64.unpack_from, strings.append
    try:
        for _ in range(count):
            first = position + 8
            position = first + unpack(blob, position)[0]
            append(blob[first:position].decode())
    except UnicodeDecodeError:
        raw_strings, position = split_strings(blob, start, count)
        return [raw.decode(errors="replace") for raw in raw_strings], position
    return strings, position


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
