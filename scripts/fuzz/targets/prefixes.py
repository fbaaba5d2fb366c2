"""Prefixes on disk: files of pages, found by keys and read back. What is damaged is deleted, and nothing fails."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mutation import mutated as mutated_bytes
from scratch import scratch

from edgeinfer.engine.kv.saved_state import LENGTH, _checksum
from edgeinfer.engine.prefixes.keys import page_keys, page_names, words
from edgeinfer.engine.prefixes.parts_file import MAGIC, PartsReader
from edgeinfer.engine.prefixes.store import PAGES, PrefixStore
from edgeinfer.graph.step import PAGE

PAGE_BYTES = 5000
TOKENS = list(range(3 * PAGE + 20))
ROOT = b"root"


@cache
def store() -> PrefixStore:
    """One in a folder of its own."""
    return PrefixStore(folder(), 10**8, PAGE_BYTES)


@cache
def folder() -> Path:
    """Its folder."""
    return scratch() / "prefixes/model"


def path() -> Path:
    """The file of the text's pages."""
    return folder() / f"{page_keys(ROOT, TOKENS)[0]}{PAGES}"


def seeds() -> list[bytes]:
    """A text's pages, and a file with one page alone."""
    names, found = page_names(ROOT, TOKENS), []
    for count in (len(names), 1):
        assert store().write_pages(names[:count], [memoryview(bytes([count]) * PAGE_BYTES)] * count)
        found.append(path().read_bytes())
    return found


def mutated(seeds: Sequence[bytes], rng: random.Random, limit: int) -> bytes:
    """A changed file, or one with a changed header and its right checksum."""
    seed = rng.choice(seeds)
    if rng.random() < 0.4:
        return mutated_bytes([seed], rng, limit)
    begin, end = len(MAGIC) + LENGTH.size, seed.find(b"}") + 1
    header = mutated_bytes([seed[begin:end]], rng, 4000)
    start = MAGIC + LENGTH.pack(len(header)) + header
    start += _checksum(start)
    return start + seed[len(start) :]


def run(data: bytes) -> None:
    """Find the text in it, and read what is found."""
    path().write_bytes(data)
    keys = page_keys(ROOT, TOKENS)
    parts = [words(TOKENS[first : first + PAGE]) for first in range(0, len(TOKENS), PAGE)]
    with store().find(keys, parts) as found, PartsReader(found.pages) as reading:
        for content in store().verified(iter(reading)):
            assert len(content) == PAGE_BYTES
