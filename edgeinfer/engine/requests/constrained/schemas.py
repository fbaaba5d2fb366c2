"""JSON schemas where llguidance needs help: bounds of many digits, and strings that must be short.

In: the text of a schema. Out: the same schema with bounds that llguidance represents exactly, no wider than before; the
numbers it would write differently; the regular expressions and formats of its strings, and a short text that matches
each. Such a text is made of the shortest text of each part; the caller must try it, since anchors and word boundaries
are not checked. Groups, alternatives and repeats are parsed here, and `re` says which character a set or an escape
matches; other constructs (lookarounds, back references) give no text. Errors in a schema are left to llguidance.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

EXACT = 1 << 53
"""All whole numbers up to this are exact in 64-bit floats."""
FARTHEST = 9_200_000_000_000_000_000
"""Bounds beyond this exceed 64-bit integers, which llguidance expands into digits; a round number, exact in floats."""
EXACT_DIGITS = 15
"""Numbers with up to this many digits are read alike by every reader of 64-bit floats."""

LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keys whose values map user-chosen names to schemas."""
_PLAIN = ("const", "enum", "default", "examples")
"""Keys whose values are not schemas."""
Schema = dict[str, Any]
LONGEST_TEXT = 256
LONGEST_PATTERN = 1000
"""Most characters of a pattern; longer ones would take too long."""
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "date": "2000-01-01",
        "date-time": "2000-01-01T00:00:00Z",
        "duration": "P1D",
        "email": "a@a.aa",
        "hostname": "a",
        "ipv4": "0.0.0.0",
        "ipv6": "::",
        "time": "00:00:00Z",
        "uri": "a:a",
        "uuid": "00000000-0000-0000-0000-000000000000",
    }
)
_PART = re.compile(
    r"""(?P<open>\((?:\?(?:[aimsux]*:|P?<\w+>))?(?!\?))
    | (?P<close>\)) | (?P<alternative>\|) | (?P<anchor>[\^$]|\\[bBAZz])
    | (?P<repeat>[*+?]|\{(?P<least>\d+)(?:,\d*)?\})\??
    | (?P<character>\[\^?\]?(?:\\.|[^\]\\])*\]|\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)|[^()])""",
    re.VERBOSE | re.DOTALL,
)
_SET_OPERATORS = re.compile(r"\[[^]]*(\[|--|&&|~~|\|\|)")
"""Characters that other regular expression dialects read as operators within a set."""
_BY_NUMBER = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_USUAL = "a0 A-_.~"
"""One character of every category, tried first if several match."""


class CannotBeHeld(ValueError):
    """A bound that leaves only numbers that llguidance cannot represent."""


def read(text: str) -> object:
    """Parse a schema. Raises ValueError if the text is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parts(schema: object) -> Iterator[Schema]:
    """Yield a schema and all schemas within it."""
    rest = [schema]
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            rest += one
        elif isinstance(one, dict):
            yield one
            for key, value in one.items():
                if key in NAMED and isinstance(value, dict):
                    rest += value.values()
                elif key not in _PLAIN:
                    rest.append(value)


def with_bounds_held(schema: object) -> Any:
    """A copy with each bound moved inwards to the nearest one that llguidance represents. Raises CannotBeHeld."""
    held = json.loads(json.dumps(schema))
    for one in parts(held):
        for key in (*LOWER, *UPPER):
            bound = one.get(key)
            if isinstance(bound, int | float) and abs(bound) > EXACT:
                one[key] = _held(bound, key)
    return held


def with_numbers_bounded(schema: object) -> Any:
    """A copy in which numbers have bounds: llguidance writes them without exponents then, and their digits end.

    With an exponent, a number may be infinite to who reads it.
    """
    bounded = json.loads(json.dumps(schema))
    for one in parts(bounded):
        kinds = one.get("type")
        if {"number", "integer"}.isdisjoint(kinds if isinstance(kinds, list) else [kinds]):
            continue
        if one.keys().isdisjoint(("enum", "const")):
            if one.keys().isdisjoint(LOWER):
                one["minimum"] = -FARTHEST
            if one.keys().isdisjoint(UPPER):
                one["maximum"] = FARTHEST
    return bounded


def _held(bound: float, key: str) -> int:
    """The nearest representable whole number that is not lower (or not higher) than a bound."""
    is_lower = key in LOWER
    if abs(bound) > FARTHEST:
        if (bound > 0) is is_lower:
            raise CannotBeHeld(f"{key} {bound} leaves only numbers of more than 64 bits")
        return FARTHEST if bound > 0 else -FARTHEST
    nearest = float(bound)
    if (nearest < bound) if is_lower else (nearest > bound):
        nearest = math.nextafter(nearest, math.inf if is_lower else -math.inf)
    return int(nearest)


def long_numbers(schema: object) -> list[int | float]:
    """Numbers that answers must or may contain and that not every reader of 64-bit floats reads alike."""
    rest, found = [one[key] for one in parts(schema) for key in ("const", "enum") if key in one], []
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            rest += one
        elif isinstance(one, dict):
            rest += one.values()
        elif (isinstance(one, int) and abs(one) > EXACT) or (isinstance(one, float) and _n_digits(one) > EXACT_DIGITS):
            found.append(one)
    return found


def _n_digits(number: float) -> int:
    return sum(map(str.isdigit, repr(number).partition("e")[0].lstrip("-0.")))


def forms(schema: object) -> tuple[list[str], list[str]]:
    """The regular expressions and the formats of a schema's strings and keys, each once."""
    patterns, formats = dict[str, None](), dict[str, None]()
    for one in parts(schema):
        if isinstance(pattern := one.get("pattern"), str):
            patterns[pattern] = None
        if isinstance(one.get("patternProperties"), dict):
            patterns |= dict.fromkeys(one["patternProperties"])
        if isinstance(form := one.get("format"), str):
            formats[form] = None
    return list(patterns), list(formats)


def shortest(pattern: str) -> str | None:
    """A text that matches the pattern, or None if none is easily found."""
    if len(pattern) > LONGEST_PATTERN or _SET_OPERATORS.search(pattern):
        return None
    try:
        return _text(pattern)
    except (re.error, ValueError, IndexError):
        return None


def _text(pattern: str) -> str:
    """Raises ValueError, IndexError or re.error if no text is found for the pattern."""
    groups: list[list[list[str]]] = [[[]]]  # open groups: the alternatives of each, the parts of each alternative
    place = 0
    while place < len(pattern):
        if (part := _PART.match(pattern, place)) is None:
            raise ValueError(f"unknown construct at {place}")
        place, parts = part.end(), groups[-1][-1]
        if part["open"]:
            groups.append([[]])
        elif part["close"]:
            closed = groups.pop()
            groups[-1][-1].append(_joined(closed))
        elif part["alternative"]:
            groups[-1].append([])
        elif part["repeat"]:
            least = int(part["least"]) if part["least"] else int(part["repeat"] == "+")
            parts[-1] *= min(least, LONGEST_TEXT + 1)
        elif part["character"]:
            parts.append(_character(part["character"]))
    (outermost,) = groups
    return _joined(outermost)


def _joined(alternatives: list[list[str]]) -> str:
    text = min(map("".join, alternatives), key=len)
    if len(text) > LONGEST_TEXT:
        raise ValueError("the text is too long")
    return text


def _character(pattern: str) -> str:
    """A character that matches a literal, an escape or a set. Raises ValueError if none was found."""
    by_number = [chr(int(two or four, 16)) for two, four in _BY_NUMBER.findall(pattern)]
    matches = re.compile(pattern).fullmatch
    candidates: list[str] = [*_USUAL, *by_number, *pattern, *"\n\t\r\f\v"]
    for character in candidates:
        if matches(character):
            return character
    raise ValueError(f"no character matches {pattern}")
