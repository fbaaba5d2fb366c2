"""Files of saved sessions and slots, of models with keys and values, with windows, and with states.

Whoever changes a file may correct its checksum too: half of the inputs have a right one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from mutation import mutated as mutated_bytes
from scratch import scratch
from tiny import ATTENDING, RECURRENT, WINDOWED, opened

from edgeinfer.engine.kv import saved_state
from edgeinfer.engine.run.executor import MAGIC as STATE_MAGIC
from edgeinfer.engine.session import MAGIC, Session

NAMES = ATTENDING, RECURRENT, WINDOWED
FOLDER = scratch()
TEXTS = "the rain", "the rain in Spain stays mainly in the plain, and " * 4
GREEDY = {"temperature": 0.0, "max_tokens": 2}
SUM = saved_state.CHECKSUM_BYTES
LONGEST_BYTES = 1 << 17


@cache
def session(name: str) -> Session:
    """An open session of a model."""
    return opened(name).session()


def seeds() -> list[bytes]:
    """What sessions of each model save of a short and of a longer text; the first byte says which model it is."""
    found, path = [], FOLDER / "saved"
    for number, name in enumerate(NAMES):
        for text in TEXTS:
            session(name).complete(text, **GREEDY).read()
            session(name).save(path)
            found.append(bytes([number]) + path.read_bytes())
    return found


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """A changed file, or one whose state, tokens or header are changed and whose checksums are right."""
    seed = rng.choice(seeds)
    if rng.random() < 0.3:
        return mutated_bytes([seed], rng, LONGEST_BYTES)
    data = bytearray(seed[1:-SUM])
    at = data.find(STATE_MAGIC)
    for _ in range(rng.choice((1, 1, 2, 3))):
        first = rng.choice((len(MAGIC), at, at))
        end = data.find(b"}", first) + 1
        piece = bytes(data[first:end])
        data[first:end] = _number_changed(piece, rng) if rng.random() < 0.6 else mutated_bytes([piece], rng, 4000)
        at = max(0, data.find(STATE_MAGIC))
    data[at:] = _framed(STATE_MAGIC, bytes(data[at:-SUM]))
    return seed[:1] + _framed(MAGIC, bytes(data))


def _framed(magic: bytes, data: bytes) -> bytes:
    """Data with the right length of its header and the right checksum."""
    length, start = data.find(b"}") + 1 - len(magic) - saved_state.LENGTH.size, len(magic) + saved_state.LENGTH.size
    whole = magic + saved_state.LENGTH.pack(max(0, length)) + data[start:]
    return whole + saved_state._checksum(whole)


def _number_changed(piece: bytes, rng: random.Random) -> bytes:
    """A JSON text with one of its numbers replaced."""
    places = [at for at, byte in enumerate(piece) if chr(byte).isdigit() and not chr(piece[at - 1]).isalnum()]
    if not places:
        return piece
    at = end = rng.choice(places)
    while end < len(piece) and chr(piece[end]).isdigit():
        end += 1
    odd = (
        b"0",
        b"1",
        b"-1",
        b"64",
        b"65",
        b"1e999",
        b"NaN",
        b"null",
        b'"1"',
        b"[1]",
        b"9" * 30,
        b"4294967296",
        b"{}",
        b"1.5",
    )
    return piece[:at] + rng.choice(odd) + piece[end:]


def run(data: bytes) -> None:
    """Restore it, and go on from there."""
    own, path = session(NAMES[(*data[:1], 0)[0] % len(NAMES)]), FOLDER / "changed"
    path.write_bytes(data[1:])
    try:
        own.restore(path)
    finally:
        assert own.complete(TEXTS[0] + " in Spain", **GREEDY).read() is not None
