"""The primed table: the likeliest successors of every token of a vocabulary, from running each token alone.

In: an executor. Out: int32[V, BEST] rows as the tables of successors keep them, part by part, so that it can be done
in pieces while nobody waits. Source of the table's form: Token Recycling (arXiv 2408.08696).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.backends.base import Batch, Int32s
from edgeinfer.backends.cpu.catalogue import Function, Source
from edgeinfer.backends.cpu.library import KernelLibrary
from edgeinfer.engine.executor import Executor
from edgeinfer.engine.kvcache import pages_for
from edgeinfer.engine.speculation.drafters import LOOPS
from edgeinfer.engine.speculation.records import BEST

PACK = Function("pack_rows", Source("learning", "pack_rows", package=LOOPS), 5)
MOST_AT_ONCE = 64


class Priming:
    """Runs tokens of a vocabulary after a beginning, some at a time, the first ids first: they are the commonest."""

    def __init__(self, executor: Executor, library: KernelLibrary, n_vocab: int, beginning: Sequence[int]) -> None:
        self._executor = executor
        self._n_vocab = n_vocab
        self._beginning = beginning
        self._library = library  # owns the code
        self._pack: Callable[..., int] = library.function(PACK)

    def rows(self, first: int) -> Int32s:
        """Rows of the next tokens from `first` on, as many as memory has room for: int32[n, BEST]; none at the end."""
        executor, limits, n_begun = self._executor, self._executor.limits, len(self._beginning)
        count = min(MOST_AT_ONCE, self._n_vocab - first, limits.max_tokens, limits.max_outputs)
        order, found = np.arange(count, dtype=np.int32), np.zeros((max(count, 0), BEST), np.int32)
        if count < 1 or executor.n_free_pages < 3 + pages_for(n_begun) or n_begun >= limits.n_context:
            return found[:0]
        sequence = executor.create()
        try:
            begun = np.arange(n_begun, dtype=np.int32)
            if n_begun:
                tokens = np.array(self._beginning, np.int32)
                executor.evaluate(Batch(tokens, np.full(n_begun, sequence, np.int32), begun, begun - 1, begun[:0]))
                executor.commit(sequence, begun)
            same = np.ones(count, np.int32)
            batch = Batch(order + np.int32(first), sequence * same, n_begun * same, -same, order)
            logits = executor.evaluate(batch)
            self._pack(logits.ctypes.data, logits.strides[0], count, self._n_vocab, found.ctypes.data)
        finally:
            executor.free(sequence)
        return found
