"""What tests of prefixes on disk write, and how they read it back."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence

import numpy as np

from edgeinfer.engine.prefixes.parts_file import PartsReader
from edgeinfer.engine.prefixes.store import PrefixStore

PAGE_BYTES = 5000
Usage = namedtuple("Usage", "total used free")


def pages_of(seed: int, count: int) -> list[memoryview]:
    draw = np.random.default_rng(seed)
    return [memoryview(draw.bytes(PAGE_BYTES)) for _ in range(count)]


def keys_of(*names: str) -> list[str]:
    return [name * 40 for name in names]


def contents(store: PrefixStore, keys: Sequence[str]) -> list[bytes]:
    with store.find(keys) as found, PartsReader(found.pages) as reading:
        return [bytes(page) for page in store.verified(iter(reading))]


def checkpoint(store: PrefixStore, key: str) -> bytes | None:
    file = store.checkpoint(key, PAGE_BYTES)
    if file is None:
        return None
    with file, PartsReader([(file, 0)]) as reading:
        return next((bytes(content) for content in store.verified(iter(reading))), None)
