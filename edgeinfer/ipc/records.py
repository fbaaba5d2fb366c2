"""Converts dataclasses to JSON and back, validated against their type hints.

In: frozen dataclasses of numbers, text, paths, bytes, tuples, mappings and other dataclasses. Out: JSON, and equal
records again, or ValueError naming the field. Functions are left out and get their default value. Knows no connections.
"""

from __future__ import annotations

import base64
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from numbers import Integral, Real
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union

Plain = object
"""Any JSON value. A field of this type is validated by the code that reads it."""
T = TypeVar("T")
Reader = Callable[[Any], Any]


def to_json(value: object) -> str:
    """Encode a value as one line of JSON. Raises TypeError for objects that have no JSON form."""
    return json.dumps(value, default=_plain)


def from_json(kind: type[T], text: str | bytes) -> T:
    """Decode a record from JSON. Raises ValueError."""
    record: T = read_as(kind, json.loads(text))
    return record


def read_as(kind: Any, value: object) -> Any:
    """Convert a JSON value to a type, such as a dataclass or `tuple[int, ...]`. Raises ValueError on a mismatch."""
    return _reader(kind)(value)


def _plain(value: object) -> object:
    """The plain form of an object that the JSON encoder does not know."""
    if is_dataclass(value) and not isinstance(value, type):
        values = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: item for name, item in values if not callable(item)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Integral):  # NumPy scalars
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"{type(value).__name__} cannot be sent to another process")


@cache
def _reader(hint: Any) -> Reader:
    """The function that reads values of a type."""
    if hint in (Any, object):
        return lambda value: value
    if hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: _record(hint, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return lambda value: _literal(arguments, value)
    if origin in (Union, UnionType):
        return lambda value: _union(arguments, value)
    if origin is tuple and arguments[1:] != (...,):
        return lambda value: _fixed_tuple(arguments, value)
    if origin in _SEQUENCES:
        return lambda value: _SEQUENCES[origin](map(_reader(arguments[0]), _list(value)))
    if origin in (dict, Mapping):
        return lambda value: _mapping(arguments[0], arguments[1], value)
    raise TypeError(f"{hint} cannot be read from JSON")


@cache
def _fields(kind: type) -> Mapping[str, tuple[Any, Field[Any]]]:
    """The type and the declaration of each field that the constructor accepts."""
    hints = typing.get_type_hints(kind)
    return {field.name: (hints[field.name], field) for field in fields(kind) if field.init}


def _record(kind: Any, value: object) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is no {kind.__name__}")
    known = _fields(kind)
    if unknown := value.keys() - known.keys():
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(map(str, unknown)))}")
    arguments = {}
    for name, (hint, field) in known.items():
        if name in value:
            try:
                arguments[name] = _reader(hint)(value[name])
            except (ValueError, OverflowError) as reason:
                raise ValueError(f"{kind.__name__}.{name}: {reason}") from None
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{kind.__name__} without {name}")
    return kind(**arguments)


def _of(*kinds: type) -> Reader:
    def read(value: object) -> object:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"{value!r:.80} is no {kinds[0].__name__}")
        return value

    return read


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else base64.b64decode(str(value), validate=True)


_SCALARS: Mapping[Any, Reader] = {
    NoneType: _of(NoneType),
    None: _of(NoneType),
    bool: _of(bool),
    int: _of(int),
    float: lambda value: float(_of(int, float)(value)),
    str: _of(str),
    bytes: _bytes,
    Path: lambda value: Path(_of(str)(value)),
}
_SEQUENCES: Mapping[Any, Callable[..., Any]] = {tuple: tuple, list: list, Sequence: tuple, frozenset: frozenset}


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.80} is no list")
    return value


def _literal(allowed: tuple[object, ...], value: object) -> object:
    if value not in allowed:
        raise ValueError(f"{value!r:.80} is none of {', '.join(map(str, allowed))}")
    return value


def _union(hints: tuple[Any, ...], value: object) -> object:
    for hint in hints:
        try:
            return _reader(hint)(value)
        except ValueError as error:
            reason = error
            if hint is not NoneType:
                best = reason
    raise best


def _fixed_tuple(hints: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    items = _list(value)
    if len(items) != len(hints):
        raise ValueError(f"{len(items)} values where there must be {len(hints)}")
    return tuple(_reader(hint)(item) for hint, item in zip(hints, items, strict=True))


def _mapping(key: Any, of: Any, value: object) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80} is no mapping")
    read_key: Reader = key if key in (int, float) else _reader(key)
    return {read_key(name): _reader(of)(item) for name, item in value.items()}
