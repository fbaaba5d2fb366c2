"""Putting prefixes from disk into sequences: the meeting of the store with the cache.

In: a prompt, and how much of it memory has. Out: what the store has beyond that, which is being read while others use
the engine; then a sequence with it. What is damaged ends the prefix there; the rest of the text is read as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgeinfer.engine.kv.cached_pages import Bytes, CachedPages
from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.prefixes.keys import n_before_modules, page_keys, words
from edgeinfer.engine.prefixes.parts_file import PartsFile, PartsReader
from edgeinfer.engine.prefixes.store import FoundPages, PrefixStore
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.errors import ContextOverflow, DoesNotFit
from edgeinfer.graph.step import PAGE

LEAST_TOKENS = 256
"""Fewest tokens that are kept on disk, and put back."""
LEAST_GAINED = 16
"""Fewest tokens beyond those in memory that are put back: fewer are read as quickly."""

Root = Callable[[tuple[float, ...]], bytes]
"""The root of keys for given scales of LoRA adapters."""


@dataclass(slots=True)
class ComingPrefix:
    """The first `n_tokens` tokens of a prompt in the store, which are being read from page number `first` on.

    `parts`: all pages, and after them the checkpoint if one is needed. Close it, or use `with`.
    """

    n_tokens: int
    found: FoundPages
    parts: Sequence[tuple[PartsFile, int]]
    first: int
    reading: PartsReader

    def __enter__(self) -> ComingPrefix:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End reading. Safe to call twice."""
        self.reading.close()
        self.found.close()

    def go_back_to(self, number: int) -> None:
        """Read from this page on, if that is before what is being read."""
        if number < self.first:
            self.reading.close()
            self.first, self.reading = number, PartsReader(self.parts[number:])


def coming_prefix(
    root: bytes, prompt: Sequence[int], n_cached: int, pages: CachedPages, store: PrefixStore, ahead_bytes: int = 0
) -> ComingPrefix | None:
    """Begin to read what the store has of a prompt beyond `n_cached` tokens; None if that is not worth it.

    `root`: of keys. `ahead_bytes`: memory for pages that are read before they are put back.
    """
    n_most = min(n_before_modules(prompt), len(prompt) - 1)  # at least one token is read, whose logits are needed
    least = max(LEAST_TOKENS, n_cached + LEAST_GAINED)
    if n_most < least:
        return None
    text = prompt[:n_most]
    keys = page_keys(root, text)
    found = store.find(keys, [words(text[start : start + PAGE]) for start in range(0, n_most, PAGE)])
    try:
        n_tokens, parts = _resumable(pages, store, keys, found, least)
        if n_tokens < least:
            found.close()
            return None
        first = n_cached // PAGE
        return ComingPrefix(n_tokens, found, parts, first, PartsReader(parts[first:], ahead_bytes))
    except BaseException:
        found.close()
        raise


def put_back(
    cached: CachedSequence,
    prompt: Sequence[int],
    prefix: ComingPrefix,
    pages: CachedPages,
    store: PrefixStore,
    make_room: Callable[[], bool],
) -> int:
    """Continue a sequence, which has less of a prompt, with a prefix of it; returns how many tokens come from there.

    `make_room`: frees memory, if there is any that may be freed. Call with the engine's lock held.
    """
    if prefix.n_tokens < cached.n_cached + LEAST_GAINED:
        return 0
    n_own = cached.cut(cached.n_cached // PAGE * PAGE) // PAGE
    prefix.go_back_to(n_own)
    sequence, n_pages, n_done = cached.settle(), pages_for(prefix.n_tokens), n_own

    def write(place: int, content: memoryview) -> None:
        if n_own <= prefix.first + place < n_pages:
            pages.write(sequence, prefix.first + place, _bytes(content)[None])

    is_whole = False  # but if only pages are needed, what is there of them
    try:  # a signal handler may raise at any point: nothing stays counted that was not written
        if not _extended(cached, prompt[: prefix.n_tokens], pages, make_room):
            return 0
        if pages.takes_threads:
            prefix.reading.give(write)
        for place, content in enumerate(store.verified(iter(prefix.reading))):
            if not pages.takes_threads:
                write(place, content)
            if prefix.first + place == n_pages:
                pages.write_checkpoint(sequence, n_own, _bytes(content))
            n_done = max(n_own, prefix.first + place + 1)
        is_whole = n_done == len(prefix.parts)
    finally:
        prefix.reading.close()  # its threads write to pages that may be given to others from now on
        if not is_whole:
            cached.cut(min((n_own if pages.needs_checkpoints else n_done) * PAGE, cached.n_cached))
    return max(0, cached.n_cached - n_own * PAGE)


def _resumable(
    pages: CachedPages, store: PrefixStore, keys: Sequence[str], found: FoundPages, least: int
) -> tuple[int, Sequence[tuple[PartsFile, int]]]:
    """The most tokens after which a text with these keys can be continued, and the parts that this needs."""
    if not pages.needs_checkpoints:
        n_next = 0 if found.next_page is None else found.n_next
        return len(found) * PAGE + n_next, [*found.pages, *([found.next_page] if found.next_page and n_next else [])]
    for n_pages in range(len(found), pages_for(least) - 1, -1):
        key = keys[n_pages - 1]
        if store.has_checkpoint(key):
            checkpoint = store.checkpoint(key, pages.checkpoint_bytes(n_pages))
            if checkpoint is not None:
                found.files.append(checkpoint)
                return n_pages * PAGE, [*found.pages[:n_pages], (checkpoint, 0)]
    return 0, ()


def _extended(cached: CachedSequence, text: Sequence[int], pages: CachedPages, make_room: Callable[[], bool]) -> bool:
    """Take pages for a text that continues a sequence; returns whether there was room."""
    while True:
        try:
            pages.extend(cached.settle(), len(text))
        except DoesNotFit:
            if not make_room():
                return False
        except ContextOverflow:
            return False
        else:
            cached.count(text[cached.n_cached :])
            return True


def _bytes(content: memoryview) -> Bytes:
    return np.frombuffer(content, np.uint8)
