"""A short text that a regular expression matches, and one for each format of JSON Schema.

In: a regular expression. Out: a text, made of the least of each of its parts; whoever uses it must try it, for what
surrounds a part (anchors, word boundaries) is not looked at. It is taken apart by Python's own parser, whose grammar is
close to that of other languages; what that does not know has no text here. Knows no schemas and no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from re import _constants as codes  # type: ignore[attr-defined]  # not in its stubs
from re import _parser  # type: ignore[attr-defined]
from types import MappingProxyType
from typing import Any

MOST = 256
"""Characters of a text;"""
MOST_WRITTEN = 1000
"""of a regular expression: longer ones would take time."""

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

_SET_OPERATORS = re.compile(r"\[[^]]*(\[|--|&&|~~|\|\|)")
"""What within a set other languages take for sets and operators on them."""
_USUAL = "a0 A-_.~"
"""Characters for where many may stand, of every category."""
_OF_CATEGORY = MappingProxyType(
    {
        codes.CATEGORY_DIGIT: r"\d",
        codes.CATEGORY_NOT_DIGIT: r"\D",
        codes.CATEGORY_SPACE: r"\s",
        codes.CATEGORY_NOT_SPACE: r"\S",
        codes.CATEGORY_WORD: r"\w",
        codes.CATEGORY_NOT_WORD: r"\W",
    }
)

Part = tuple[Any, Any]
"""What Python's parser makes of a part of a regular expression: a code, and what belongs to it."""


def shortest(pattern: str) -> str | None:
    """A text that it matches, where one is easily found."""
    if len(pattern) > MOST_WRITTEN or _SET_OPERATORS.search(pattern):
        return None
    try:
        return _text(_parser.parse(pattern))
    except (re.error, ValueError, RecursionError, OverflowError):
        return None


def _text(parts: Iterable[Part]) -> str:
    found = "".join(_of(*part) for part in parts)
    if len(found) > MOST:
        raise ValueError("too long")
    return found


def _of(code: object, value: Any) -> str:
    """The text of one part. Raises ValueError for parts that are not known."""
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.IN or code is codes.NOT_LITERAL:
        return _one_of([(codes.NEGATE, None), (codes.LITERAL, value)] if code is codes.NOT_LITERAL else value)
    if code is codes.ANY:
        return _USUAL[0]
    if code is codes.BRANCH:
        branches: list[Sequence[Part]] = value[1]
        return min(map(_text, branches), key=len)
    if code is codes.SUBPATTERN:
        return _text(value[-1])
    if code is codes.MAX_REPEAT or code is codes.MIN_REPEAT:
        times: int = value[0]
        return _text(value[2]) * min(times, MOST + 1)
    if code is codes.AT:
        return ""
    raise ValueError(f"{code} is not known")


def _one_of(members: Sequence[Part]) -> str:
    """A character of a set."""
    negated = members[0][0] is codes.NEGATE
    named = members[1:] if negated else members
    ends: list[str] = []
    for code, value in named:
        if code is not codes.CATEGORY:
            ends += map(chr, value if code is codes.RANGE else [value])
    for character in list(_USUAL) + ends:
        if any(_is(character, *member) for member in named) is not negated:
            return character
    raise ValueError("no character")


def _is(character: str, code: object, value: Any) -> bool:
    if code is codes.CATEGORY:
        return re.match(_OF_CATEGORY[value], character) is not None
    low, high = value if code is codes.RANGE else (value, value)
    return bool(low <= ord(character) <= high)
