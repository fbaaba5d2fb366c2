"""Records as TOML tables: one list of keys defines how to read a table, with checks and units, and how to write it.

In: a value from `tomllib` with decimals as they were written, or a record. Out: the record, or lines of TOML with
comments. BadSetting says where, what, and what would work. Numbers are converted by shifting decimal places only, so
that a round trip is bit-exact. Knows no key by name.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from edgeinfer.errors import BadSetting

MOST_ENTRIES = 4096
"""Longest list: a longer one is a mistake or an attack."""
MOST_LETTERS = 2000
PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
REQUIRED = object()
"""The default of a required key."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a key. `read` raises ValueError if the rule is broken; the rule says what would work."""

    rule: str
    read: Callable[[object], Any]
    text: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number: `unit` for people, worth ten to the power of `exponent` plain units, and its range."""

    unit: str
    exponent: int
    at_most: float
    zero: bool = False

    @property
    def rule(self) -> str:
        return f"use a number of {self.unit} {'from' if self.zero else 'above'} 0 to {self.at_most:g}"

    def read(self, value: object) -> float:
        """The value in plain units. Raises ValueError."""
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise ValueError(self.rule)
        try:
            size = float(value)
        except OverflowError:
            raise ValueError(self.rule) from None
        if not (0 <= size <= self.at_most) or (size == 0 and not self.zero):
            raise ValueError(self.rule)
        plain = float(Decimal(value).scaleb(self.exponent))
        if plain == 0 and size > 0:
            raise ValueError(self.rule)
        return plain

    def text(self, plain: float) -> str:
        """A value in plain units as the shortest decimal number of this quantity that reads back as the same value."""
        return f"{Decimal(repr(plain)).scaleb(-self.exponent).normalize():f}"


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table and the record field it maps to. `tables`: the key holds one table, a list, or a mapping.

    A field equal to its `default` is not written.
    """

    name: str
    field: str
    kind: Kind | Quantity | RecordKeys
    default: object = REQUIRED
    comment: str = ""
    tables: Literal["one", "list", "by name"] = "one"

    @property
    def rule(self) -> str:
        """What would work."""
        if self.tables == "list":
            return f"use a list of 1 to {MOST_ENTRIES} tables; each: {self.kind.rule}"
        if self.tables == "by name":
            return f'use a table for each name, or one for all: {self.name}."*"'
        return self.kind.rule


@dataclass(frozen=True, slots=True)
class RecordKeys:
    """A table. `make` takes the fields; it raises ValueError, which says what is wrong and what would work."""

    make: Callable[..., Any]
    keys: tuple[Key, ...]

    @property
    def rule(self) -> str:
        return f"use a table with {', '.join(key.name for key in self.keys)}"

    def read(self, value: object, where: str) -> Any:
        """The record of a table. Raises BadSetting."""
        if not isinstance(value, dict):
            raise BadSetting(f"{where} is {shown(value)}: {self.rule}")
        names = [key.name for key in self.keys]
        for name in value:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
                raise BadSetting(f"{where}: unknown key {name[:80]!r}; {hint}")
        fields = {key.field: _field(key, value, where) for key in self.keys}
        try:
            return self.make(**fields)
        except ValueError as reason:
            raise BadSetting(f"{where}: {reason}") from None

    def lines(self, record: object, heading: str = "") -> Iterator[str]:
        """A record, or a mapping of its fields, as lines of TOML. `heading`: of the table, ending with a dot."""
        tables: list[tuple[Key, RecordKeys, Any]] = []
        for key in self.keys:
            value: Any = (
                record.get(key.field) if isinstance(record, Mapping) else getattr(record, key.field, key.default)
            )
            if value == key.default:
                continue
            if isinstance(key.kind, RecordKeys):
                tables.append((key, key.kind, value))
            else:
                yield f"{key.name} = {key.kind.text(value)}" + (f" # {key.comment}" if key.comment else "")
        for key, kind, value in tables:
            name = f"{heading}{key.name}"
            for title, part in _parts(key, name, value):
                yield from ("", title, *kind.lines(part, f"{name}."))


def _field(key: Key, table: Mapping[str, object], where: str) -> Any:
    """The field of a record that holds a table's key. Raises BadSetting."""
    if key.name not in table:
        if key.default is REQUIRED:
            raise BadSetting(f"{where}: {key.name} is missing: {key.rule}")
        return key.default
    value = table[key.name]
    if key.tables == "one" and isinstance(key.kind, RecordKeys):
        return key.kind.read(value, f"{where}: {key.name}")
    try:
        return _records(key, key.kind, value, where) if isinstance(key.kind, RecordKeys) else key.kind.read(value)
    except ValueError:
        raise BadSetting(f"{where}: {key.name} cannot be {shown(value)}: {key.rule}") from None


def _records(key: Key, kind: RecordKeys, value: object, where: str) -> object:
    """Several records. Raises ValueError for anything but a list or mapping of tables."""
    inner = f"{where}: {key.name}"
    if key.tables == "list" and isinstance(value, list) and 0 < len(value) <= MOST_ENTRIES:
        return tuple(kind.read(part, f"{inner} {number}") for number, part in enumerate(value, start=1))
    if key.tables == "by name" and isinstance(value, dict) and value:
        return {name: kind.read(part, f"{inner} {name[:80]!r}") for name, part in value.items()}
    raise ValueError(key.rule)


def _parts(key: Key, name: str, value: Any) -> Iterator[tuple[str, object]]:
    """Headings of the tables that a key holds, and the contents of each."""
    if key.tables == "list":
        yield from ((f"[[{name}]]", part) for part in value)
    elif key.tables == "by name":
        yield from ((f"[{name}.{own if PLAIN_KEY.fullmatch(own) else quoted(own)}]", value[own]) for own in value)
    else:
        yield f"[{name}]", value


def whole(at_most: int, at_least: int = 0) -> Kind:
    """A whole number."""
    rule = f"use a whole number from {at_least} to {at_most}"

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value <= at_most:
            raise ValueError(rule)
        return value

    return Kind(rule, read, str)


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MOST_LETTERS:
        raise ValueError
    return value


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def quoted(text: str) -> str:
    """A TOML string: a JSON string, except that DEL is escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


TEXT = Kind(f"use text of 1 to {MOST_LETTERS} letters", _text, quoted)
SWITCH = Kind("use true or false", _switch, json.dumps)


def listed(rule: str, read: Callable[[object], Any], text: Callable[[Any], str], most_of_a_line: int = 6) -> Kind:
    """A list of such values."""

    def read_all(values: object) -> tuple[Any, ...]:
        if not isinstance(values, list) or len(values) > MOST_ENTRIES:
            raise ValueError(rule)
        return tuple(map(read, values))

    def written(values: Sequence[Any]) -> str:
        texts = list(map(text, values))
        return f"[{', '.join(texts)}]" if len(texts) <= most_of_a_line else "[\n  " + ",\n  ".join(texts) + ",\n]"

    return Kind(f"{rule}, at most {MOST_ENTRIES}", read_all, written)


def decimal_or_infinite(text: str) -> Decimal:
    """A number of a TOML file as it is written; infinite if its exponent is out of range."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("inf")


def shown(value: object) -> str:
    """A value for a message, truncated if long."""
    if isinstance(value, dict | list):
        return f"a {'table' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**80:
        return f"a whole number of {value.bit_length()} bits"
    text = str(value) if isinstance(value, Decimal | bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
