"""Inputs made of others: bytes changed, left out, repeated, moved, joined with those of another input.

In: valid inputs, a generator of random numbers. Out: an input that may be anything, at most MOST_BYTES long, or as long
as its target says. Most are short, so that there can be many of them; one in LONG_EVERY may be as long as possible.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

MOST_BYTES = 1 << 16
ROOM_BYTES = 1 << 18
"""The most that a target can ask for."""
LONG_EVERY = 64
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
"""Numbers at the limits of types."""
WORDS = (*rb'" \ { } [ ] ( ) < > %} {{ null 1e999 -0'.split(), b"\x00", b"\n", b" ")
"""Texts that begin or end something."""
REPEATS = (2, 3, 8, 64, 1000)


def input_of(target: Any, seeds: Sequence[bytes], seed: int, number: int) -> bytes:
    """An input of a target, made of a seed and a number alone.

    A target may have a `mutated` of its own, and the numbers LONGEST_BYTES and USUAL_BYTES.
    """
    rng = random.Random(f"{seed} {number}")
    longest = getattr(target, "LONGEST_BYTES", MOST_BYTES)
    limit = longest if rng.randrange(LONG_EVERY) == 0 else getattr(target, "USUAL_BYTES", longest)
    own: bytes = getattr(target, "mutated", mutated)(seeds, rng, limit)
    return own[:longest]


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int = MOST_BYTES) -> bytes:
    """One of the seeds, changed one to eight times, and cut at a limit."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        rng.choice(CHANGES)(data, rng, seeds)
        del data[limit:]
    return bytes(data)


def _byte(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _bit(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _number(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    size = rng.choice((1, 2, 4, 8))
    if len(data) >= size:
        at = rng.randrange(len(data) - size + 1)
        data[at : at + size] = (rng.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "little")


def _left_out(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    first, last = _span(data, rng)
    del data[first:last]


def _repeated(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    first, last = _span(data, rng)
    data[first:last] = (data[first:last] * rng.choice(REPEATS))[:MOST_BYTES]


def _word(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.choice(WORDS) * rng.choice((1, 1, 1, *REPEATS))


def _moved(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    first, last = _span(data, rng)
    piece = bytes(data[first:last])
    del data[first:last]
    at = rng.randint(0, len(data))
    data[at:at] = piece


def _joined(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    first, last = _span(other, rng)
    at = rng.randint(0, len(data))
    data[at:at] = other[first:last]


def _cut(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del data[rng.randint(0, len(data)) :]


def _span(data: bytes | bytearray, rng: random.Random) -> tuple[int, int]:
    """The beginning and the end of a piece, short ones more often."""
    first = rng.randint(0, len(data))
    return first, min(len(data), first + rng.choice((1, 2, 4, 8, 16, 64, 256, 4096)))


CHANGES: tuple[Callable[[bytearray, random.Random, Sequence[bytes]], None], ...] = (
    *(_byte, _bit, _number, _number, _left_out, _repeated, _word, _moved, _joined, _cut),
)
