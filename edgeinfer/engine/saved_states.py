"""The states of a sequence beside its saved pages: the one it is at, and its checkpoints.

In: the accounting of a cache and a lane's states. Out: bytes, and the same states in a sequence that was saved.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.base import StateMemory
from edgeinfer.engine.kvcache import KVCache
from edgeinfer.engine.state import Value
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.step import PAGE, Int32s


def saved(cache: KVCache, states: StateMemory | None, sequence: int) -> tuple[dict[str, Value], bytes]:
    """What a header is to say of a sequence's states, and their contents; nothing for a model without."""
    if cache.states is None or states is None:
        return {}, b""
    checkpoints = cache.states.checkpoints(cache.pages(sequence)[: cache.n_cached(sequence) // PAGE].tolist())
    kept = [cache.states.current(sequence), *(slot for _, slot in checkpoints)]
    return {"checkpoints": [n_pages for n_pages, _ in checkpoints]}, states.read(kept).tobytes()


def put_back(cache: KVCache, states: StateMemory | None, sequence: int, checkpoints: Value, body: bytes) -> None:
    """Put back the state that a sequence is at, and as many of its checkpoints as fit.

    Raises DoesNotFit where there is no place for the state, and leaves the sequence empty.
    """
    if cache.states is None or states is None:
        return
    contents = np.frombuffer(body, np.uint8).reshape(-1, states.slot_bytes)
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
