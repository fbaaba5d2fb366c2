"""Costs of passes of several tokens, measured once per model, device, worker pool and type of KV pages, and kept.

In: an executor. Out: `MeasuredCosts`, stored with the compiled loops. What was measured while other programs used the
processor counts until the model is opened again, a few times at most: there a pass of two tokens once took 27 times as
long as one of one, and nothing was ever drafted.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from edgeinfer.engine.measure.idle import QuietMeter
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.speculation.costs import MeasuredCosts, best_of, measure
from edgeinfer.engine.speculation.records import MOST
from edgeinfer.graph.step import PAGE, Batch
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.offload.weights import OffloadedWeights
from edgeinfer.steps import Progress, no_progress

VERSION = 7
"""Increment when stored costs change their meaning."""
MOST_DISTURBED = 4
"""Disturbed measurements of which the best is kept for good: some machines are never quiet."""
AGAIN_BYTES = 1 << 30
"""Models that take more, or are read from disk, are not measured again: it would take many seconds, over which
disturbances are averaged out. What a pass took does not tell them: beside other load one of 4 ms takes 90.
"""

TIMING = "timing passes, once"


@dataclass(frozen=True, slots=True)
class _Measured:
    """`n_disturbed`: how many measurements were all disturbed; 0: these are of one that was not."""

    costs: MeasuredCosts
    n_disturbed: int


class KeptCosts:
    """The costs of passes of one model as it is opened."""

    def __init__(self, library: KernelLibrary, executor: SequenceEvaluator, fingerprint: str) -> None:
        self._library, self._executor = library, executor
        limits = executor.limits
        self._is_small = limits.stored is None and executor.resident_bytes <= AGAIN_BYTES
        name = f"verify-cost-{VERSION}-{fingerprint}-{executor.device}-{executor.n_workers}-{limits.kv}"
        self._name = name if limits.stored is None else f"{name}-disk-{_about(limits.stored)}"

    @property
    def are_known(self) -> bool:
        """Whether they have been measured, if only on a busy machine."""
        return self._read() is not None

    def known(self, n_vocab: int, progress: Progress = no_progress) -> MeasuredCosts:
        """The costs, from earlier measurements or measured now."""
        kept = self._read()
        if kept is not None and not (0 < kept.n_disturbed < MOST_DISTURBED and self._is_small):
            return kept.costs
        meter = QuietMeter()
        meter.begin()
        costs = measure_costs(self._executor, n_vocab, progress)
        n_disturbed = 0
        if not meter.end():
            n_disturbed = 1 if kept is None else kept.n_disturbed + 1
            costs = costs if kept is None else best_of(kept.costs, costs)
        self._library.keep_note(self._name, json.dumps({**asdict(costs), "n_disturbed": n_disturbed}))
        return costs

    def _read(self) -> _Measured | None:
        note = self._library.note(self._name)
        if note is None:
            return None
        with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            kept = json.loads(note)
            first, deep = _seconds(kept["first"]), _seconds(kept["deep"])
            if 1 in first:
                return _Measured(MeasuredCosts(first, int(kept["depth"]), deep), int(kept["n_disturbed"]))
        return None


def _seconds(points: Mapping[str, float]) -> dict[int, float]:
    return {int(size): float(seconds) for size, seconds in points.items()}


def _about(stored: OffloadedWeights) -> int:
    """A step of what a pass may read from disk, of four to a doubling: free memory is never twice the same."""
    read_bytes = stored.path.stat().st_size - stored.pinned_bytes - stored.cache_bytes
    return round(4 * math.log2(max(1, read_bytes)))


def measure_costs(executor: SequenceEvaluator, n_vocab: int, progress: Progress = no_progress) -> MeasuredCosts:
    """Measure passes over 1 and more tokens, with logits for all, at the start of a sequence and deep in one."""
    limits = executor.limits
    sequence = executor.create()

    def run(n_tokens: int, depth: int) -> float:
        if executor.n_cached(sequence) != depth:
            executor.pretend(sequence, depth)
        order = np.arange(n_tokens, dtype=np.int32)
        tokens = (order * 7919 % n_vocab).astype(np.int32)
        batch = Batch(tokens, np.full(n_tokens, sequence, np.int32), order + np.int32(depth), order - 1, order)
        started = time.perf_counter()
        executor.evaluate(batch)
        seconds = time.perf_counter() - started
        executor.truncate(sequence, depth)
        return seconds

    try:
        most = min(MOST, limits.max_tokens, limits.max_outputs, limits.n_context)
        deepest = min(limits.n_context, executor.n_free_pages * PAGE) - most
        return measure(run, most, deepest, streamed=limits.stored is not None, told=partial(progress, TIMING))
    finally:
        executor.free(sequence)
