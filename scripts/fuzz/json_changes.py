"""JSON values made of others: wrong types, numbers at the limits, texts that are none, deep nesting, missing parts.

In: a value, a generator of random numbers. Out: its text as bytes, which may be no JSON.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

Place = tuple[Any, Any]
"""A list or a dict, and an index or a key in it."""

ODD: Sequence[Any] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31 - 1,
        2**31,
        2**53,
        2**63,
        2**64,
        -(2**63),
        10**400,
        0.0,
        -0.0,
        0.5,
        1e-320,
        1e308,
    ),
    *(float("nan"), float("inf"), -float("inf"), "", " ", "\x00", "\ud800", "\u202e", "a" * 5000, "\U0001f98a" * 300),
    *(
        "1",
        "true",
        "null",
        "../../etc/passwd",
        "%s%n",
        "{{7*7}}",
        "http://[::1",
        "data:image/png;base64,AAAA",
        "<s>",
        "</s>",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        [{}],
        {"": ""},
        {"a": {}},
        {"type": "object"},
        {"type": "text", "text": "x"},
        {"role": "user"},
    ),
    *(["a"] * 300, list(range(300)), {str(number): number for number in range(300)}),
)


def changed(value: Any, rng: random.Random, others: Sequence[Any] = ()) -> bytes:
    """A value with one to four changes, as text. `others`: values whose parts may take the place of its own."""
    holder = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        rng.choice(CHANGES)(holder, rng, others)
    text = json.dumps(holder[0], ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return _nested(text, rng) if rng.random() < 0.02 else text


def _nested(text: bytes, rng: random.Random) -> bytes:
    """The text with a value that is nested more deeply than readers go."""
    depth, pair = rng.choice((50, 500, 5000)), rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    places = [at for at, byte in enumerate(text) if byte == ord(":")] or [0]
    at = rng.choice(places) + 1
    return text[:at] + pair[0] * depth + b"1" + pair[1] * depth + b"," + text[at:]


def places_of(value: Any) -> list[Place]:
    """All places in a value, at most some thousands."""
    found, left = list[Place](), [value]
    while left and len(found) < 3000:
        one = left.pop()
        keys = range(len(one)) if isinstance(one, list) else list(one) if isinstance(one, dict) else ()
        found += [(one, key) for key in keys]
        left += [one[key] for key in keys]
    return found


def _odd(holder: list[Any], rng: random.Random, others: Sequence[Any]) -> None:
    parent, key = rng.choice(places_of(holder))
    parent[key] = copy.deepcopy(rng.choice(ODD))


def _near(holder: list[Any], rng: random.Random, others: Sequence[Any]) -> None:
    """Another value of the same type."""
    parent, key = rng.choice(places_of(holder))
    value = parent[key]
    if isinstance(value, bool):
        parent[key] = not value
    elif isinstance(value, int | float):
        half = value * 0.5 if abs(value) < 1e300 else 0.5
        parent[key] = rng.choice((-value, value + 1, value - 1, value * 1000, half, 0))
    elif isinstance(value, str):
        at = rng.randint(0, len(value))
        parent[key] = value[:at] + rng.choice(("", "\n", "\ud83e", "\x1b[2J", value, "{", "<think>", "]")) + value[at:]
    elif isinstance(value, list):
        parent[key] = value[::-1] + value[: rng.randint(0, 3)]


def _left_out(holder: list[Any], rng: random.Random, others: Sequence[Any]) -> None:
    parent, key = rng.choice(places_of(holder))
    if parent is not holder:
        del parent[key]


def _repeated(holder: list[Any], rng: random.Random, others: Sequence[Any]) -> None:
    lists = [parent[key] for parent, key in places_of(holder) if isinstance(parent[key], list) and parent[key]]
    if lists:
        one = rng.choice(lists)
        one += [copy.deepcopy(rng.choice(one))] * rng.choice((1, 1, 3, 100))


def _taken(holder: list[Any], rng: random.Random, others: Sequence[Any]) -> None:
    """A part of another value in place of one of these, or under the key that it has there."""
    theirs = places_of([rng.choice(others)]) if others else []
    if not theirs:
        return
    (source, name), (parent, key) = rng.choice(theirs), rng.choice(places_of(holder))
    value = copy.deepcopy(source[name])
    if isinstance(name, str) and isinstance(parent, dict) and rng.random() < 0.7:
        parent[name] = value
    else:
        parent[key] = value


def _renamed(holder: list[Any], rng: random.Random, others: Sequence[Any]) -> None:
    named = [(parent, key) for parent, key in places_of(holder) if isinstance(parent, dict)]
    if named:
        parent, key = rng.choice(named)
        parent[rng.choice((key + "s", key.upper(), "", "\x00", "__class__", "a" * 300))] = parent.pop(key)


CHANGES: Sequence[Callable[[list[Any], random.Random, Sequence[Any]], None]] = (
    *(_odd, _odd, _odd, _near, _near, _left_out, _repeated, _taken, _taken, _renamed),
)
