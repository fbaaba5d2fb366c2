"""Keys of pages: each names the whole text up to its end, and everything that its keys and values depend on.

In: the identity of what reads texts (model, device, KV format …), scales of LoRA adapters, tokens. Out: a root, and a
key per page: the hash of the key before and of the page's tokens. Equal keys mean equal contents, bit for bit. A page's
name is its key with its tokens, of which another text may share only the first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from edgeinfer.engine.kv.saved_state import Value
from edgeinfer.graph.step import PAGE

FORMAT = "edgeinfer prefix 2"
KEY_BYTES = 20


def root_key(identity: Mapping[str, Value], scales: Sequence[float]) -> bytes:
    """What the first page follows. `scales`: of LoRA adapters, with which texts are read."""
    return _hash(json.dumps([FORMAT, dict(identity), list(scales)], sort_keys=True).encode())


def page_keys(root: bytes, tokens: Sequence[int]) -> list[str]:
    """The key of each whole page of a text, in hexadecimal digits."""
    return [key for key, _ in _pages(root, tokens[: len(tokens) // PAGE * PAGE])]


def page_names(root: bytes, tokens: Sequence[int]) -> list[str]:
    """The name of each page of a text; the last page may be a part of one."""
    return [f"{key}.{page.hex()}" for key, page in _pages(root, tokens)]


def key_of(name: str) -> str:
    """The key in a page's name."""
    return name.partition(".")[0]


def tokens_of(name: str) -> list[int]:
    """The tokens in a page's name; none if it has none."""
    try:
        return [int(token) for token in np.frombuffer(bytes.fromhex(name.partition(".")[2]), "<i4")]
    except ValueError:
        return []


def n_ids(tokens: Sequence[int]) -> int:
    """The number of tokens before the first row, whose name says nothing about its contents to other processes."""
    return next((place for place, token in enumerate(tokens) if token < 0), len(tokens))


def _pages(root: bytes, tokens: Sequence[int]) -> list[tuple[str, bytes]]:
    """Key and tokens of each page."""
    before, found, text = root, list[tuple[str, bytes]](), np.array(tokens, "<i4")
    for start in range(0, len(text), PAGE):
        page = text[start : start + PAGE].tobytes()
        before = _hash(before + page)
        found.append((before.hex(), page))
    return found


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()
