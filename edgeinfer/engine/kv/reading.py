"""The step of a model that attends to the cached tokens of another one's sequences and stores nothing.

In: the other model's page bookkeeping, a batch whose tokens stand at positions of cached tokens. Out: a `Step` in which
each of them attends to what is cached up to and including its position. Changes no page.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.graph.step import PAGE, Batch, Step


def step_of_cached(cache: KVCache, batch: Batch) -> Step:
    """The step of such a batch. Raises ValueError for tokens at positions that are not cached."""
    sequences, positions = batch.sequences.tolist(), batch.positions.tolist()
    for sequence, position in zip(sequences, positions, strict=True):
        if not 0 <= position < cache.n_cached(sequence):
            raise ValueError(f"sequence {sequence} has {cache.n_cached(sequence)} cached tokens, none at {position}")
    pages = [cache.pages(sequence) for sequence in sequences]
    tables = np.full((len(pages), max(map(len, pages))), -1, np.int32)
    for table, own in zip(tables, pages, strict=True):
        table[: len(own)] = own
    rows, places = np.arange(len(pages), dtype=np.int32), batch.positions
    slots = tables[rows, places // PAGE] * PAGE + places % PAGE
    return Step(batch, rows, slots.astype(np.int32), places, tables)
