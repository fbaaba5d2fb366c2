"""Whether kernels should prefetch memory ahead of the hardware prefetcher: measured, because processors differ.

In: a worker pool and the calls of a tape for one token. Out: their argument records with `ahead` kept or set to 0. The
first time on a machine, the products of the first layers are run alternately both ways; output bits are the same.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from edgeinfer.backends.base import WorkSplit
from edgeinfer.backends.cpu.layout.records import PRODUCT
from edgeinfer.backends.cpu.workers.tape import Call, Tape
from edgeinfer.backends.cpu.workers.worker_pool import WorkerPool
from edgeinfer.jit.library import KernelLibrary

ROUNDS = 7
MEASURED_BYTES = 48 << 20
"""Bytes of weights read in a round: they take some milliseconds, and exceed most caches."""
HARM = 1.1
"""Prefetching is turned off from this ratio of times, with to without, on; the result is saved."""


def choose_ahead(calls: Sequence[Call], worker_pool: WorkerPool, library: KernelLibrary) -> bool:
    """Decide whether to prefetch, and write it into the calls; the step record must have one token and one output.

    A model too small to measure does prefetch.
    """
    asking = [call for call in calls if "ahead" in (call.arguments.dtype.names or ())]
    measured = _first_products(asking)
    if sum(map(_weight_bytes, measured)) < MEASURED_BYTES:
        return True
    name = f"reads_ahead-{worker_pool.n_workers}"
    known = library.note(name)
    pays = _pays(measured, worker_pool, library) if known is None else known == "yes"
    if known is None:
        library.keep_note(name, "yes" if pays else "no")
    for call in asking:
        call.arguments["ahead"] = int(pays)
    return pays


def _pays(measured: Sequence[Call], worker_pool: WorkerPool, library: KernelLibrary) -> bool:
    """Whether prefetching does no harm."""
    tape, ratios = Tape(list(measured), library), []
    for _ in range(ROUNDS):
        with_it, without = _seconds(tape, measured, worker_pool, 1), _seconds(tape, measured, worker_pool, 0)
        ratios.append(with_it / without)
    return statistics.median(ratios) < HARM


def _first_products(calls: Sequence[Call]) -> list[Call]:
    """Integer products from the start of a model up to MEASURED_BYTES of weights."""
    found, n_bytes = [], 0
    for call in calls:
        if call.arguments.dtype == PRODUCT and n_bytes < MEASURED_BYTES:
            found.append(call)
            n_bytes += _weight_bytes(call)
    return found


def _weight_bytes(call: Call) -> int:
    return int(call.arguments["n_units"][0] * call.arguments["unit_bytes"][0])


def _seconds(tape: Tape, calls: Sequence[Call], worker_pool: WorkerPool, ahead: int) -> float:
    """Seconds of a run with or without prefetching."""
    for call in calls:
        call.arguments["ahead"] = ahead
    started = time.perf_counter()
    worker_pool.run(tape, WorkSplit.even(worker_pool.n_workers))
    return time.perf_counter() - started
