"""Keys of pages: each names the whole text up to its end, and everything that its keys and values depend on.

In: the identity of what reads texts (model, device, KV format …), scales of LoRA adapters, tokens. Out: a root, and a
key per page: the hash of the key before and of the page's tokens. Equal keys mean equal contents, bit for bit: names of
rows say what the rows are made of. A page's name is its key with its tokens, of which another text may share only the
first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from edgeinfer.engine.kv.saved_state import Value
from edgeinfer.engine.requests.module_prompts import HIGHEST
from edgeinfer.engine.requests.prompt_rows import HASH_BITS, NUMBER_BITS
from edgeinfer.graph.step import PAGE

FORMAT = "edgeinfer prefix 3"
KEY_BYTES = 20
NAME_BYTES = (HASH_BITS + NUMBER_BITS) // 8
"""Of the names of rows, without the sign."""
WORD = 1 << 62


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


def words_of(name: str) -> list[int]:
    """The tokens in a page's name, as `words`; none if it has none."""
    try:
        return [int(word) for word in np.frombuffer(bytes.fromhex(name.partition(".")[2]), "<i8")]
    except ValueError:
        return []


def n_before_modules(tokens: Sequence[int]) -> int:
    """The number of tokens before the first one of a module, which was read elsewhere."""
    return next((place for place, token in enumerate(tokens) if token <= HIGHEST), len(tokens))


def words(tokens: Sequence[int]) -> list[int]:
    """Tokens as numbers of 64 bits: ids as they are, and of names of rows a part, below zero."""
    if min(tokens, default=0) >= 0:
        return list(tokens)
    return [token if token >= 0 else -1 - (~token >> NUMBER_BITS ^ ~token) % WORD for token in tokens]


def _pages(root: bytes, tokens: Sequence[int]) -> list[tuple[str, bytes]]:
    """Key and words of each page. Keys are made of whole names."""
    before, found = root, list[tuple[str, bytes]]()
    for start in range(0, len(tokens), PAGE):
        page = tokens[start : start + PAGE]
        content = np.array(words(page), "<i8").tobytes()
        names = b"".join((~token).to_bytes(NAME_BYTES, "little") for token in page if token < 0)
        before = _hash(before + content + names)
        found.append((before.hex(), content))
    return found


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=KEY_BYTES).digest()
