"""Putting prefixes from disk into sequences: the meeting of the store with the cache.

In: a sequence with what memory has of its prompt, and the prompt. Out: the same sequence with more pages, as many as
the store has. What is damaged ends the prefix there; the rest of the text is read as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from edgeinfer.engine.kv.cached_pages import Bytes, CachedPages
from edgeinfer.engine.prefixes.keys import n_ids, page_keys
from edgeinfer.engine.prefixes.store import FoundPages, PrefixStore
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.errors import ContextOverflow, DoesNotFit
from edgeinfer.graph.step import PAGE

LEAST_TOKENS = 256
"""Fewest tokens that are kept on disk, and put back."""

Root = Callable[[tuple[float, ...]], bytes]
"""The root of keys for given scales of LoRA adapters."""


def restore(
    cached: CachedSequence,
    prompt: Sequence[int],
    pages: CachedPages,
    store: PrefixStore,
    root: Root,
    make_room: Callable[[], bool],
) -> int:
    """Continue a sequence along a prompt with pages of the store; returns how many tokens they have.

    The sequence has a prefix of the prompt. `make_room`: frees memory, if there is any that may be freed. Call with the
    engine's lock held.
    """
    n_most = min(n_ids(prompt), len(prompt) - 1) // PAGE  # at least one token is read, whose logits are needed
    least = max(LEAST_TOKENS, (cached.n_cached // PAGE + 1) * PAGE)
    if n_most * PAGE < least:
        return 0
    text = prompt[: n_most * PAGE]
    keys = page_keys(root(cached.scales), text)
    with store.find(keys) as found:
        n_pages, checkpoint = _resumable(pages, store, keys[: len(found)], least // PAGE)
        if n_pages * PAGE < least:
            return 0
        n_own = cached.cut(cached.n_cached // PAGE * PAGE) // PAGE
        if not _extended(cached, text[: n_pages * PAGE], pages, make_room):
            return 0
        return _filled(cached, pages, store, found, (n_own, n_pages), checkpoint)


def _resumable(
    pages: CachedPages, store: PrefixStore, keys: Sequence[str], least: int
) -> tuple[int, memoryview | None]:
    """The most pages after which a text with these keys can be continued, and the checkpoint there if it needs one."""
    if not pages.needs_checkpoints:
        return len(keys), None
    for n_pages in range(len(keys), least - 1, -1):
        checkpoint = store.checkpoint(keys[n_pages - 1]) if store.has_checkpoint(keys[n_pages - 1]) else None
        if checkpoint is not None and len(checkpoint) == pages.checkpoint_bytes(n_pages):
            return n_pages, checkpoint
    return 0, None


def _extended(cached: CachedSequence, text: Sequence[int], pages: CachedPages, make_room: Callable[[], bool]) -> bool:
    """Take pages for a text that continues a sequence; returns whether there was room."""
    while True:
        try:
            pages.extend(cached.settle(), len(text) // PAGE)
        except DoesNotFit:
            if not make_room():
                return False
        except ContextOverflow:
            return False
        else:
            cached.count(text[cached.n_cached :])
            return True


def _filled(
    cached: CachedSequence,
    pages: CachedPages,
    store: PrefixStore,
    found: FoundPages,
    added: tuple[int, int],
    checkpoint: memoryview | None,
) -> int:
    """Fill pages from the first number `added` up to the second; drops what cannot be filled.

    Returns the tokens gained.
    """
    n_own, n_pages = added
    sequence, n_done, is_whole = cached.settle(), n_own, False
    try:
        with closing(store.read(found.pages[n_own:n_pages])) as contents:
            for content in contents:
                pages.write(sequence, n_done, _bytes(content)[None])
                n_done += 1
        if checkpoint is None:
            is_whole = not pages.needs_checkpoints
        elif n_done == n_pages:
            pages.write_checkpoint(sequence, n_own, _bytes(checkpoint))
            is_whole = True
    finally:
        if n_done < n_pages or not is_whole:
            cached.cut((n_done if is_whole else n_own) * PAGE)
    return max(0, cached.n_cached - n_own * PAGE)


def _bytes(content: memoryview) -> Bytes:
    return np.frombuffer(content, np.uint8)
