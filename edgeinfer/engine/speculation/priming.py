"""The primed table: the likeliest successors of every token of a vocabulary, each token run after a fixed beginning.

In: an executor. Out: int32[V, BEST] rows as the successor tables hold them, computed in parts, so that the work fits in
gaps between requests. Source of the table's form: Token Recycling (arXiv 2408.08696).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.pool import FairLock
from edgeinfer.engine.speculation.drafters import LOOPS
from edgeinfer.engine.speculation.records import BEST
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.jit.code import CodeSource, CompiledFunction
from edgeinfer.jit.library import KernelLibrary

PACK = CompiledFunction("pack_rows", CodeSource(LOOPS, "learning", "pack_rows"), 7)
MOST_AT_ONCE = 64
FEW = 8
LONGEST_S = 0.03
"""Seconds that a pass in idle time should take at most, since a request may arrive meanwhile."""
IDLE_S = 1.0
"""Seconds without a running request after which idle time begins."""
LOOK_S = 0.1


def packed(pack: Callable[..., int], logits: Floats, peaks: Floats | None, n_vocab: int) -> Int32s:
    """The highest of each row of logits, as `loops.best` packs them: int32[O, BEST]. `pack`: the loop of PACK."""
    out = np.zeros((len(logits), BEST), np.int32)
    where = (0, 0) if peaks is None else (peaks.ctypes.data, peaks.strides[0])
    if len(logits):
        pack(logits.ctypes.data, logits.strides[0], *where, len(logits), n_vocab, out.ctypes.data)
    return out


class Priming:
    """Runs tokens of a vocabulary after a beginning, some at a time, lowest ids first: they are the most common."""

    def __init__(
        self, executor: SequenceEvaluator, library: KernelLibrary, n_vocab: int, beginning: Sequence[int]
    ) -> None:
        self._executor = executor
        self._n_vocab = n_vocab
        self._beginning = beginning
        self._library = library  # owns the code
        self._pack: Callable[..., int] = library.function(PACK)

    def rows(self, first: int, most: int = MOST_AT_ONCE) -> Int32s:
        """Rows of the next tokens from `first` on, at most `most`: int32[n, BEST]; empty at the end, or without memory.

        Runs a pass; only one pass may run at a time. The beginning is read again each time, as it is short.
        """
        executor, limits, n_begun = self._executor, self._executor.limits, len(self._beginning)
        count = min(most, MOST_AT_ONCE, self._n_vocab - first, limits.max_tokens, limits.max_outputs)
        order, none = np.arange(count, dtype=np.int32), np.zeros((0, BEST), np.int32)
        if count < 1 or executor.n_free_pages < 3 + pages_for(n_begun) or n_begun >= limits.n_context:
            return none
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
            return packed(self._pack, logits, executor.peaks, self._n_vocab)
        except DoesNotFit:  # idle sequences hold all states, or all pages of windows
            return none
        finally:
            executor.free(sequence)


class IdlePriming:
    """Primes in a separate thread while nothing is generated. Close it.

    `idle_s` returns how long nothing has been generated; `lock` is held during a pass; `take` is called with the first
    token id and its rows.
    """

    def __init__(
        self,
        priming: Priming,
        first: int,
        lock: FairLock,
        idle_s: Callable[[], float],
        take: Callable[[int, Int32s], None],
    ) -> None:
        self._priming = priming
        self._first = first
        self._lock = lock
        self._idle_s = idle_s
        self._take = take
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgeinfer-priming", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End within one pass; may be called twice."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        size = FEW
        while not self._closing.wait(0 if self._idle_s() >= IDLE_S else LOOK_S):
            if self._idle_s() < IDLE_S:
                continue
            with self._lock:
                if self._closing.is_set() or self._idle_s() < IDLE_S:
                    continue
                started = time.perf_counter()
                rows = self._priming.rows(self._first, size)
                seconds = time.perf_counter() - started
            if not len(rows):
                return
            self._take(self._first, rows)
            self._first += len(rows)
            size = (
                min(2 * size, MOST_AT_ONCE)
                if seconds < LONGEST_S / 2
                else max(size // 2, 1)
                if seconds > LONGEST_S
                else size
            )
