"""What a device holds of a sequence, as bytes: its pages, the window of layers that keep no more, and its states.

In: the accounting of a cache and a lane. Out: bytes with what a header is to say of them, and the same contents in a
sequence that was saved. Knows no files.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Lane
from edgeinfer.backends.memories import StateMemory
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.saved_state import Value
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.step import PAGE, Int32s

SAVED_CHECKPOINT_BYTES = 64_000_000
"""Checkpoints that are saved with a sequence take no more than this, except for the newest, which always is."""


def n_saved_checkpoints(slot_bytes: int) -> int:
    """Most checkpoints that are saved with a sequence, of states of a size."""
    return max(1, SAVED_CHECKPOINT_BYTES // max(1, slot_bytes))


def saved(cache: KVCache, lane: Lane, sequence: int) -> tuple[dict[str, Value], bytes]:
    """What a header is to say of a sequence's contents, and these."""
    pages, n_tokens, windows = cache.pages(sequence), cache.n_cached(sequence), lane.capabilities.windows
    body = lane.read_pages(pages).tobytes() if len(pages) else b""
    if cache.windows is not None and windows is not None and len(pages):
        cache.windows.tell(windows)
        body += windows.read(pages[cache.windows.first_page(n_tokens) :]).tobytes()
    told, states = _saved_states(cache, lane.capabilities.states, sequence)
    return {"n_tokens": n_tokens, **told}, body + states


def put_back(cache: KVCache, lane: Lane, sequence: int, header: dict[str, Value], body: bytes) -> None:
    """Replace what is cached of a sequence by saved contents.

    Raises ContextOverflow or DoesNotFit where there is no room, and leaves the sequence empty.
    """
    n_tokens, windows = int(str(header["n_tokens"])), lane.capabilities.windows
    pages, page_bytes = cache.refill(sequence, n_tokens), lane.read_pages(np.zeros(1, np.int32)).shape[1]
    if not len(pages):
        return
    contents = np.frombuffer(bytearray(body), np.uint8)
    start, stop = 0, len(pages) * page_bytes
    lane.write_pages(pages, contents[:stop].reshape(len(pages), page_bytes))
    if cache.windows is not None and windows is not None:
        cache.windows.tell(windows)
        seen, page_bytes = pages[cache.windows.first_page(n_tokens) :], windows.page_bytes
        start, stop = stop, stop + len(seen) * page_bytes
        windows.write(seen, contents[start:stop].reshape(len(seen), page_bytes))
    _put_states_back(cache, lane.capabilities.states, sequence, header.get("checkpoints", ()), contents[stop:])


def fill_with_zeros(cache: KVCache, lane: Lane, sequence: int, n_tokens: int) -> None:
    """Let a sequence have so many cached tokens whose keys and values are zeros. Raises as `KVCache.refill`."""
    pages, windows = cache.refill(sequence, n_tokens), lane.capabilities.windows
    if not len(pages):
        return
    lane.write_pages(pages, np.zeros_like(lane.read_pages(pages)))
    if cache.windows is not None and windows is not None:
        cache.windows.tell(windows)
        seen = pages[cache.windows.first_page(n_tokens) :]
        windows.write(seen, np.zeros((len(seen), windows.page_bytes), np.uint8))


def _saved_states(cache: KVCache, states: StateMemory | None, sequence: int) -> tuple[dict[str, Value], bytes]:
    """What a header is to say of a sequence's state and newest checkpoints, and their contents."""
    if cache.states is None or states is None:
        return {}, b""
    pages = cache.pages(sequence)[: (cache.n_cached(sequence) - 1) // PAGE].tolist()  # of those before the last token
    checkpoints = cache.states.checkpoints(pages)[-n_saved_checkpoints(states.slot_bytes) :]
    kept = [cache.states.current(sequence), *(slot for _, slot in checkpoints)]
    return {"checkpoints": [n_pages for n_pages, _ in checkpoints]}, states.read(kept).tobytes()


def _put_states_back(
    cache: KVCache, states: StateMemory | None, sequence: int, checkpoints: Value, body: NDArray[np.uint8]
) -> None:
    """Put back the state that a sequence is at, and as many of its checkpoints as fit.

    Raises DoesNotFit where there is no place for the state, and leaves the sequence empty.
    """
    if cache.states is None or states is None:
        return
    contents = body.reshape(-1, states.slot_bytes)
    try:
        states.write([cache.states.adopt(sequence)], contents[:1])
    except DoesNotFit:
        cache.truncate(sequence, 0)
        raise
    assert not isinstance(checkpoints, int | str)
    pages: Int32s = cache.pages(sequence)
    for n_pages, content in zip(checkpoints, contents[1:], strict=True):
        if cache.states.slots.n_available:
            slot = cache.states.slots.take()
            cache.states.slots.keep(int(pages[n_pages - 1]), slot)
            states.write([slot], content[None])
