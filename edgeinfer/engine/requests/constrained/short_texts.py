"""A short text that matches a regular expression, and one for each format of JSON Schema.

In: a regular expression. Out: a text, made of the shortest text of each part. The caller must try it, since anchors and
word boundaries are not checked. Groups, alternatives and repeats are parsed here, and `re` says which character a set
or an escape matches; other constructs (lookarounds, back references) give no text. Knows no schemas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

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
