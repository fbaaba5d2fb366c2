"""Where the time of a step goes: per kind of op and kernel, and in launches and barriers.

In: the seconds that a worker pool recorded per tape entry, or a pool. Out: sums. Knows nothing of what the ops compute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import OpSeconds, WorkSplit
from edgeinfer.backends.capabilities import KernelTime, Overhead
from edgeinfer.backends.cpu.catalogue import NOTHING
from edgeinfer.backends.cpu.layout.chosen_records import EXPERT_PRODUCTS
from edgeinfer.backends.cpu.layout.records import ENTRY_INTS, FLOAT_PRODUCT, PRODUCT
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.backends.cpu.workers.traffic import bytes_read, visible_alone
from edgeinfer.backends.cpu.workers.worker_pool import CallTimes, WorkerPool
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.step import Step
from edgeinfer.jit.library import KernelLibrary

PRODUCTS = (PRODUCT, FLOAT_PRODUCT, EXPERT_PRODUCTS)
"""Arguments of the kernels that multiply; an op's other calls round what they read."""


def op_times(
    calls: Sequence[tuple[Op, Sequence[Call]]], times: CallTimes, step: Step | None = None
) -> list[KernelTime]:
    """Sums by kind of op and kernel, in order of first appearance; `calls` are those of the profiled tape.

    `step`: what was evaluated, for the bytes that were read; None: those of products for a token.
    """
    n_tokens, n_visible = (1, 0) if step is None else (len(step.batch.tokens), visible_alone(step))
    busy, waiting = times.busy.mean(axis=0), times.waiting.mean(axis=0)
    sums: dict[tuple[str, str], list[float]] = {}
    place = 0
    for op, its_calls in calls:
        for call in its_calls:
            name = call.kernel.name if call.calls is None else f"{call.kernel.name} {call.calls.name}"
            row = sums.setdefault((type(op).__name__, name), [0.0, 0.0, 0.0, 0.0])
            row[0] += float(busy[place])
            row[1] += float(waiting[place + 1])
            row[2] += 1
            row[3] += bytes_read(call, n_tokens, n_visible, op.active if n_visible and isinstance(op, Experts) else 0)
            place += 1
    return [KernelTime(op, kernel, row[0], row[1], int(row[2]), int(row[3])) for (op, kernel), row in sums.items()]


def call_times(calls: Sequence[tuple[Op, Sequence[Call]]], times: CallTimes) -> list[OpSeconds]:
    """Seconds of each call of the profiled tape, in order, including the barrier after it."""
    busy, waiting = times.busy.mean(axis=0).tolist(), times.waiting.mean(axis=0).tolist()
    flat = [(op, call) for op, its_calls in calls for call in its_calls]
    return [
        OpSeconds(op, call.kernel.arguments in PRODUCTS, busy[place] + waiting[place + 1])
        for place, (op, call) in enumerate(flat)
    ]


def overhead(
    worker_pool: WorkerPool, library: KernelLibrary, work_split: WorkSplit, n_entries: int = 2000, runs: int = 21
) -> Overhead:
    """Measured with tapes of calls that do nothing: medians over runs."""
    empty = _median_s(worker_pool, work_split, _idle_tape(library, 0, barriers=False), runs)
    calls = _median_s(worker_pool, work_split, _idle_tape(library, n_entries, barriers=False), runs)
    barriers = _median_s(worker_pool, work_split, _idle_tape(library, n_entries, barriers=True), runs)
    return Overhead(empty, (calls - empty) / n_entries, (barriers - calls) / n_entries)


@dataclass(frozen=True, slots=True)
class _IdleTape:
    entries: NDArray[np.int64]


def _idle_tape(library: KernelLibrary, count: int, barriers: bool) -> _IdleTape:
    entries = np.zeros((count + 1, ENTRY_INTS), np.int64)
    entries[:-1, 0], entries[:, 2] = library.address(NOTHING), barriers
    entries[-1, 2] = 1
    return _IdleTape(entries)


def _median_s(worker_pool: WorkerPool, work_split: WorkSplit, tape: _IdleTape, runs: int) -> float:
    seconds = []
    for _ in range(runs):
        started = time.perf_counter()
        worker_pool.run(tape, work_split)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
