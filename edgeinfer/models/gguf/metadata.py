"""The metadata of a GGUF file: a mapping from keys to values, with typed getters.

In: the location of each value in the header. Out: numbers, strings and arrays, decoded on first access, so that opening
a model does not pay for an unused vocabulary. Independent of which keys a model needs.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType, MappingProxyType
from typing import Any, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import BadGGUF, EngineClosed
from edgeinfer.models.gguf.values import ARRAY, STRING, Buffer, MetadataValue, decode, decode_raw_strings

Default = TypeVar("Default")

_EAGER_BYTES = 1 << 16
NO_ARRAY = 0
"""A GGUF type whose values are decoded at once."""
NO_LIMITS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ValueSpan:
    """A value of GGUF type `kind` in bytes `start` to `stop` of the file."""

    kind: int
    start: int
    stop: int


class Metadata(Mapping[str, MetadataValue]):
    """The values of a header, in file order. Decoded values are cached until `release()`: do not modify them.

    Numbers and strings stay readable after the file is closed; arrays (and strings over 64 KiB) not decoded by then
    raise EngineClosed. The getters raise BadGGUF, naming the key, if it is missing and has no default, or if its value
    has another type; a default is returned only for a missing key.
    """

    __slots__ = ("_buffer", "_decoded", "_most", "_source", "_spans")

    def __init__(self, spans: Mapping[str, ValueSpan], buffer: Buffer, source: str) -> None:
        self._spans = dict(spans)
        self._buffer: Buffer | None = buffer
        self._source = source
        self._decoded: dict[str, MetadataValue] = {}
        self._most: Mapping[str, int] = {}
        for key, span in spans.items():
            if not self._is_lazy(span):
                self._decoded[key] = decode(span.kind, bytes(buffer[span.start : span.stop]))

    def __getitem__(self, key: str) -> MetadataValue:
        if key not in self._decoded:
            value = decode(self._spans[key].kind, self._blob(key))
            is_cut = key in self._most and isinstance(value, list | np.ndarray)
            self._decoded[key] = value[: self._most[key]] if is_cut else value  # type: ignore[index]
        return self._decoded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, key: object) -> bool:
        return key in self._spans

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: Default) -> str | Default: ...
    def text(self, key: str, default: object = ...) -> object:
        """The string of `key`."""
        value = self._value(key, default)
        if key in self and not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: Default) -> int | Default: ...
    def integer(self, key: str, default: object = ...) -> object:
        """The integer of `key`, of any width; a bool or a float counts as another type."""
        value = self._value(key, default)
        if key in self and (isinstance(value, bool) or not isinstance(value, int)):
            raise self._wrong(key, "an integer")
        return value

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: Default) -> float | Default: ...
    def number(self, key: str, default: object = ...) -> object:
        """The float or integer of `key`, as a float."""
        value = self._value(key, default)
        if key not in self:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        return float(value)

    @overload
    def flag(self, key: str) -> bool: ...
    @overload
    def flag(self, key: str, default: Default) -> bool | Default: ...
    def flag(self, key: str, default: object = ...) -> object:
        """The bool of `key`."""
        value = self._value(key, default)
        if key in self and not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def strings(self, key: str) -> list[str]:
        """The array of strings of `key`; invalid UTF-8 becomes U+FFFD."""
        value = self._value(key, ...)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value[:1]):
            raise self._wrong(key, "an array of strings")
        return cast("list[str]", value)

    def raw_strings(self, key: str) -> list[bytes]:
        """The array of strings of `key` as raw bytes; decoded anew at each call."""
        self.strings(key)
        return decode_raw_strings(self._blob(key))[: self._most.get(key)]

    def numbers(self, key: str) -> NDArray[Any]:
        """The array of numbers or bools of `key`, in its own type, read-only."""
        value = self._value(key, ...)
        if not isinstance(value, np.ndarray):
            raise self._wrong(key, "an array of numbers")
        return value

    def changed(
        self,
        renamed: Mapping[str, str],
        values: Mapping[str, MetadataValue],
        dropped: Collection[str] = (),
        most: Mapping[str, int] = NO_LIMITS,
    ) -> Metadata:
        """The same with other names of keys, without `dropped` ones, and with these values of no array added.

        `most`: entries that arrays keep, by key.
        """
        spans = {renamed.get(key, key): span for key, span in self._spans.items() if key not in dropped}
        added = dict.fromkeys(values, ValueSpan(NO_ARRAY, 0, 0))
        found = Metadata({}, b"", self._source)
        found._spans = spans | added
        found._buffer = self._buffer
        found._decoded = {renamed.get(key, key): value for key, value in self._decoded.items() if key not in dropped}
        found._decoded |= values
        found._most = most
        return found

    def release(self) -> None:
        """Drop decoded arrays and long strings; the next access decodes them again."""
        for key, span in self._spans.items():
            if self._is_lazy(span):
                self._decoded.pop(key, None)

    def close(self) -> None:
        """Release the file's bytes. Decoded values stay."""
        self._buffer = None

    @staticmethod
    def _is_lazy(span: ValueSpan) -> bool:
        return span.kind == ARRAY or (span.kind == STRING and span.stop - span.start > _EAGER_BYTES)

    def _blob(self, key: str) -> bytes:
        if self._buffer is None:
            raise EngineClosed(f"{self._source} is closed; read {key} before closing it")
        if isinstance(self._buffer, mmap.mmap) and self._buffer.size() < len(self._buffer):
            raise BadGGUF(f"{self._source} was cut short by another program; fetch it again")
        span = self._spans[key]
        return bytes(self._buffer[span.start : span.stop])

    def _value(self, key: str, default: object) -> object:
        if key in self._spans:
            return self[key]
        if isinstance(default, EllipsisType):
            raise BadGGUF(f"{self._source} has no metadata key {key!r}, which this model needs; try another conversion")
        return default

    def _wrong(self, key: str, wanted: str) -> BadGGUF:
        value = self[key]
        kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        shown = repr(
            value[:60] if isinstance(value, str) else value[:4] if isinstance(value, list | np.ndarray) else value
        )[:60]
        return BadGGUF(f"{self._source}: metadata key {key!r} should be {wanted}, but is {kind}: {shown}")
