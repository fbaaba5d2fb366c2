"""JSON schemas where llguidance's reading differs from their meaning: numbers with more digits than it represents.

In: the text of a schema. Out: the same schema with bounds that llguidance represents exactly, no wider than before; the
numbers it would write differently; the regular expressions and formats of its strings. Does not validate: errors in a
schema are left to llguidance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

EXACT = 1 << 53
"""All whole numbers up to this are exact in 64-bit floats."""
FARTHEST = 9_200_000_000_000_000_000
"""Bounds beyond this exceed 64-bit integers, which llguidance expands into digits; a round number, exact in floats."""
EXACT_DIGITS = 15
"""Numbers with up to this many digits are read alike by every reader of 64-bit floats."""

LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keys whose values map user-chosen names to schemas."""
_PLAIN = ("const", "enum", "default", "examples")
"""Keys whose values are not schemas."""


class CannotBeHeld(ValueError):
    """A bound that leaves only numbers that llguidance cannot represent."""


Schema = dict[str, Any]


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
                if key in _NAMED and isinstance(value, dict):
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
