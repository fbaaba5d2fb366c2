"""A bounds-checked reading position in the bytes of a GGUF header.

In: a buffer with the first bytes of a file, and the size of the whole file. Out: integers, names and positions. Every
length is checked before use, so no number in the file can cause reads outside it or allocations beyond it. Does not
interpret the bytes.
"""

from __future__ import annotations

import mmap
import struct
from typing import TypeAlias

from edgeinfer.errors import BadGGUF

Buffer: TypeAlias = memoryview | mmap.mmap | bytes

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

NAME_BYTES_MAX = 65_535
"""Longest key or tensor name. Source: docs/gguf.md."""


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
