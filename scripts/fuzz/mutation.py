"""Inputs made of others: bytes changed, left out, repeated, moved, joined with those of another input.

In: valid inputs, a generator of random numbers. Out: an input that may be anything, at most MOST_BYTES long.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

MOST_BYTES = 1 << 16
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
"""Numbers at the limits of types."""
WORDS = (*rb'" \ { } [ ] ( ) < > %} {{ null 1e999 -0'.split(), b"\x00", b"\n", b" ")
"""Texts that begin or end something."""
REPEATS = (2, 3, 8, 64, 1000)


def mutated(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """One of the seeds, changed one to eight times."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        rng.choice(CHANGES)(data, rng, seeds)
        del data[MOST_BYTES:]
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
