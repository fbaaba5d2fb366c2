"""Keys of pages: each names the whole text up to its end, and everything that its keys and values depend on.

In: the identity of what reads texts (model, device, KV format …), scales of LoRA adapters, tokens. Out: a root, and one
key per whole page: the hash of the key before and of the page's tokens. Equal keys mean equal contents, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from edgeinfer.engine.kv.saved_state import Value
from edgeinfer.graph.step import PAGE

FORMAT = "edgeinfer prefix 1"
KEY_BYTES = 20


def root_key(identity: Mapping[str, Value], scales: Sequence[float]) -> bytes:
    """What the first page follows. `scales`: of LoRA adapters, with which texts are read."""
    return _hash(json.dumps([FORMAT, dict(identity), list(scales)], sort_keys=True).encode())


def page_keys(root: bytes, tokens: Sequence[int]) -> list[str]:
    """The key of each whole page of a text, in hexadecimal digits."""
    before, keys, text = root, list[str](), np.array(tokens, "<i4")
    for stop in range(PAGE, len(tokens) + 1, PAGE):
        before = _hash(before + text[stop - PAGE : stop].tobytes())
        keys.append(before.hex())
    return keys


def n_ids(tokens: Sequence[int]) -> int:
    """The number of tokens before the first row, whose name says nothing about its contents to other processes."""
    return next((place for place, token in enumerate(tokens) if token < 0), len(tokens))


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()
