"""Whether kernels should ask for memory ahead of the processor's own prefetching: measured, for processors differ.

In: a worker pool and the calls of a tape for one token. Out: their argument records with `ahead` kept or set to 0. The
first time on a machine the products of the first layers are run both ways by turns; output bits are the same.
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
"""Weights read in a round: some milliseconds, and more than most caches hold."""
HARM = 1.1
"""Time with asking ahead, as a share of the time without it, from which on it is not done: the answer is kept."""


def choose_ahead(calls: Sequence[Call], worker_pool: WorkerPool, library: KernelLibrary) -> bool:
    """Decide whether to ask ahead, and write it into the calls; the step record must say one token and one output.

    It is done for a model too small to tell.
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
    """Whether asking ahead does no harm."""
    tape, ratios = Tape(list(measured), library), []
    for _ in range(ROUNDS):
        with_it, without = _seconds(tape, measured, worker_pool, 1), _seconds(tape, measured, worker_pool, 0)
        ratios.append(with_it / without)
    return statistics.median(ratios) < HARM


def _first_products(calls: Sequence[Call]) -> list[Call]:
    """Integer products from the start of a model until they have MEASURED_BYTES of weights."""
    found, n_bytes = [], 0
    for call in calls:
        if call.arguments.dtype == PRODUCT and n_bytes < MEASURED_BYTES:
            found.append(call)
            n_bytes += _weight_bytes(call)
    return found


def _weight_bytes(call: Call) -> int:
    return int(call.arguments["n_units"][0] * call.arguments["unit_bytes"][0])


def _seconds(tape: Tape, calls: Sequence[Call], worker_pool: WorkerPool, ahead: int) -> float:
    """Seconds of a run with or without asking ahead."""
    for call in calls:
        call.arguments["ahead"] = ahead
    started = time.perf_counter()
    worker_pool.run(tape, WorkSplit.even(worker_pool.n_workers))
    return time.perf_counter() - started
