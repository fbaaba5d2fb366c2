"""What requests have in common: the model, and the beginning of their texts.

In: the path and body of an HTTP request, in the words of any API. Out: `RequestKeys`, by which requests go where their
model is loaded and their beginning is cached. Two requests have equal keys as far as their texts are equal. Knows no
routes and no replicas; a body that it cannot read has no keys, and the server says what is wrong with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

BLOCK_BYTES = 1024
"""Bytes of text between two keys, within a message that is longer."""
MOST_KEYS = 512
"""Keys of one request: what is longer has its first 512 KB compared."""
HEAD_FIELDS = ("system", "instructions", "tools")
"""Fields that come before the messages in the prompt."""
TEXT_FIELDS = ("messages", "input", "prompt")
WITHOUT_PREFIX = ("/embed", "/rerank", "/tokenize", "/detokenize", "/count_tokens")
"""Parts of paths of requests that leave nothing in the cache."""


@dataclass(frozen=True, slots=True)
class PrefixKey:
    """The text of a request up to some place: its hash and its length."""

    digest: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """`model`: as the request names it, "" for the default. `prefix`: from short to long, the last is the whole text.

    `session`: a conversation that one replica keeps. `holder`: the replica that has what the request asks for.
    """

    model: str = ""
    prefix: tuple[PrefixKey, ...] = ()
    session: str = ""
    holder: str = ""

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole text."""
        return self.prefix[-1].n_bytes if self.prefix else 0


def request_keys(path: str, body: bytes, session: str = "") -> RequestKeys:
    """The keys of a request."""
    record = read_record(body)
    name = record.get("model") or record.get("name")
    model = name if isinstance(name, str) else ""
    has_text = not any(part in path for part in WITHOUT_PREFIX)
    return RequestKeys(model, tuple(_prefix_keys(model, record)) if has_text else (), session)


def read_record(body: bytes) -> Mapping[str, Any]:
    """The body as a JSON object; empty if it is none."""
    try:
        record = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _prefix_keys(model: str, record: Mapping[str, Any]) -> Iterator[PrefixKey]:
    """A key after every message, and after every block of a long one."""
    hashed, n_bytes, n_keys = hashlib.blake2b(model.encode("utf-8", "replace"), digest_size=12), 0, 0
    for text in _texts(record):
        data = text.encode("utf-8", "replace")
        for start in range(0, len(data), BLOCK_BYTES):
            block = data[start : start + BLOCK_BYTES]
            hashed.update(block)
            n_bytes += len(block)
            if n_keys == MOST_KEYS:
                return
            n_keys += 1
            yield PrefixKey(hashed.hexdigest(), n_bytes)


def _texts(record: Mapping[str, Any]) -> Iterator[str]:
    """The parts of a prompt in order."""
    for name in HEAD_FIELDS:
        if record.get(name):
            yield _text(record[name])
    for name in TEXT_FIELDS:
        value = record.get(name)
        if isinstance(value, list):
            yield from map(_text, value)
        elif value:
            yield _text(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, sort_keys=True)
    except RecursionError:
        return ""
