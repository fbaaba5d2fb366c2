"""Where a JSON schema cannot be followed: the smallest of its parts that is refused by itself.

In: a schema that was refused, and a function that says why one is refused. Out: the path of that part, such as
`properties.year` or `properties.tags.items`, and the reason there. Each part is tried with the definitions of the whole
one; a part that is refused for a reference alone is passed over, as it may refer to anywhere in the whole.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping

from edgeinfer.engine.requests.constrained.schemas import NAMED

LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
"""Keywords whose values are lists of schemas."""
SINGLE = ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames")
DEFINITIONS = ("$defs", "definitions")
SEARCH_S = 0.25
"""Seconds for the search, which then ends with what it has."""
NO_SCHEMA = "a schema must be an object or a boolean"
_REQUIRED = re.compile(r"required property '(.*)' is unsatisfiable$")

Problem = Callable[[object], str | None]


def fault_in(schema: object, reason: str, problem: Problem) -> str:
    """The reason why a schema is refused, with the place if it is a part. `problem`: of any schema, None for none."""
    path, part, ends_s = "", schema, time.monotonic() + SEARCH_S
    root = schema if isinstance(schema, Mapping) else {}
    definitions = {key: root[key] for key in DEFINITIONS if key in root}
    goes_on = True
    while goes_on:
        goes_on = False
        for name, child in _children(part):
            if isinstance(child, bool) or time.monotonic() > ends_s:
                continue
            found = problem({**definitions, **child}) if isinstance(child, Mapping) else NO_SCHEMA
            if found is not None and "$ref" not in found:
                path, part, reason, goes_on = f"{path}.{name}" if path else name, child, found, True
                break
    reason = _missing(part, reason) or reason
    return f"{path}: {reason}" if path else reason


def _children(part: object) -> Iterator[tuple[str, object]]:
    """What should be a schema right within a schema, with its place."""
    if not isinstance(part, Mapping):
        return
    for key, value in part.items():
        if key in NAMED and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", child) for name, child in value.items())
        elif key in LISTED and isinstance(value, list):
            yield from ((f"{key}[{number}]", child) for number, child in enumerate(value))
        elif key in SINGLE:
            yield key, value


def _missing(part: object, reason: str) -> str | None:
    """The reason in other words, if a property is required that there is none of."""
    found = _REQUIRED.search(reason)
    properties = part.get("properties", {}) if isinstance(part, Mapping) else {}
    if found is None or not isinstance(properties, Mapping) or found[1] in properties:
        return None
    return f"{found[1]!r} is required, and is none of its properties"
