"""JSON schemas, as far as llguidance reads them otherwise than they are meant: numbers of more digits than it keeps.

In: text of a schema. Out: the same with bounds that it keeps, no wider than they were; the numbers it would write as
others; the regular expressions and formats of its strings. Judges no schema: what is wrong in one is left for
llguidance to tell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

EXACT = 1 << 53
"""Whole numbers up to it are all held by 64-bit floats."""
FARTHEST = 9_200_000_000_000_000_000
"""Bounds beyond it are beyond 64-bit integers, of which llguidance makes digits; a round number that floats hold."""
EXACT_DIGITS = 15
"""So many are read as they are by every reader of 64-bit floats."""

LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keys whose values are schemas by names of the user's."""
_PLAIN = ("const", "enum", "default", "examples")
"""Keys whose values are no schemas."""


class CannotBeHeld(ValueError):
    """A bound that leaves only numbers that are not kept."""


Schema = dict[str, Any]


def read(text: str) -> object:
    """A schema. Raises ValueError for a text that is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parts(schema: object) -> Iterator[Schema]:
    """A schema and all that are within it."""
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
    """A copy whose bounds are the nearest ones within that are kept. Raises CannotBeHeld."""
    held = json.loads(json.dumps(schema))
    for one in parts(held):
        for key in (*LOWER, *UPPER):
            bound = one.get(key)
            if isinstance(bound, int | float) and abs(bound) > EXACT:
                one[key] = _held(bound, key)
    return held


def _held(bound: float, key: str) -> int:
    """The nearest whole number that is kept, no lower, or no higher, than a bound."""
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
    """The numbers that answers must or may be, of those that not every reader of 64-bit floats reads as they are."""
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
    """The regular expressions and the formats of its strings and keys, each once."""
    patterns, formats = dict[str, None](), dict[str, None]()
    for one in parts(schema):
        if isinstance(pattern := one.get("pattern"), str):
            patterns[pattern] = None
        if isinstance(one.get("patternProperties"), dict):
            patterns |= dict.fromkeys(one["patternProperties"])
        if isinstance(form := one.get("format"), str):
            formats[form] = None
    return list(patterns), list(formats)
