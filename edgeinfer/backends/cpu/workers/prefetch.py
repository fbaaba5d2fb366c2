"""What products prefetch while they read weights, chosen by measuring.

In: the calls of a tape, a worker pool. Out: argument records with `ahead` set. Processors differ in whether asking for
memory beyond what their own prefetcher fetches pays: products run alternately both ways the first time on a machine,
and the answer is kept beside the kernels; output bits are the same. Small units and large ones are apart: of small ones
the next unit is asked for, of large ones what lies a little further on. Models whose weights may stay in a large cache
and those that must come from memory each have answers of their own, by the size of what was measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from edgeinfer.backends.base import WorkSplit
from edgeinfer.backends.cpu.layout.attention_records import ATTENTION
from edgeinfer.backends.cpu.layout.chosen_records import EXPERT_PRODUCTS
from edgeinfer.backends.cpu.layout.records import A_UNIT, PRODUCT
from edgeinfer.backends.cpu.workers.tape import Call, Tape
from edgeinfer.backends.cpu.workers.traffic import record_at
from edgeinfer.backends.cpu.workers.worker_pool import WorkerPool
from edgeinfer.jit.library import KernelLibrary

ROUNDS = 9
LEAST_BYTES, MOST_BYTES = 48 << 20, 512 << 20
"""Bytes of weights read in a round: enough to take some milliseconds; more than caches hold, if there are as many."""
HARM = 1.03
"""Nothing is prefetched from this ratio of times, with to without, on."""
LARGE = 1 << 16
"""The next unit is too far away from units larger than this."""
DISTANCE = 2048
"""Bytes ahead of what is read of a large unit."""


def choose_ahead(calls: Sequence[Call], worker_pool: WorkerPool, library: KernelLibrary) -> bool:
    """Decide whether to prefetch, and write it into the calls; the step record must have one token and one output.

    Returns whether any product does. Products too small to measure follow the others, or prefetch.
    """
    asking = [call for call in calls if may_prefetch(call)]
    answers = {large: _pays(asking, large, worker_pool, library) for large in (False, True)}
    known = [answer for answer in answers.values() if answer is not None]
    for call in asking:
        large = _is_large(call)
        pays = known[0] if known and answers[large] is None else answers[large] is not False
        call.arguments["ahead"] = (DISTANCE if large else A_UNIT) if pays else 0
    return not known or any(known)


def may_prefetch(call: Call) -> bool:
    """Whether a call may prefetch."""
    return "ahead" in (call.arguments.dtype.names or ())


def prefetches_like(call: Call) -> int | str:
    """What calls that prefetch alike have in common: the place of their weights, or else what they read otherwise."""
    if "weights" in (call.arguments.dtype.names or ()):
        return int(call.arguments["weights"][0])
    return "keys and values" if call.arguments.dtype == ATTENTION else call.kernel.name


def _pays(calls: Sequence[Call], large: bool, worker_pool: WorkerPool, library: KernelLibrary) -> bool | None:
    """Whether prefetching does no harm to products with such units; None if there are too few of them."""
    measured = _first_products(calls, large)
    n_bytes = sum(map(_weight_bytes, measured))
    if n_bytes < LEAST_BYTES:
        return None
    name = f"prefetch-{'large' if large else 'small'}-{worker_pool.n_workers}-{n_bytes.bit_length()}"
    known = library.note(name)
    if known is None:
        tape, ahead, ratios = Tape(list(measured), library), DISTANCE if large else A_UNIT, []
        for _ in range(ROUNDS):
            with_it, without = (_seconds(tape, measured, worker_pool, each) for each in (ahead, 0))
            ratios.append(with_it / without)
        known = "yes" if statistics.median(ratios) < HARM else "no"
        library.keep_note(name, known)
    return known == "yes"


def _first_products(calls: Sequence[Call], large: bool) -> list[Call]:
    """Integer products with such units, from the start of a model up to MOST_BYTES of weights."""
    found, n_bytes = [], 0
    for call in calls:
        if call.arguments.dtype == PRODUCT and _is_large(call) == large and n_bytes < MOST_BYTES:
            found.append(call)
            n_bytes += _weight_bytes(call)
    return found


def _is_large(call: Call) -> bool:
    """Whether a call reads large units; attention does not."""
    args = call.arguments
    if args.dtype == EXPERT_PRODUCTS and call.calls is not None and call.calls.arguments == PRODUCT:
        args = record_at(int(args["products"][0]), PRODUCT)
    return args.dtype == PRODUCT and int(args["unit_bytes"][0]) > LARGE


def _weight_bytes(call: Call) -> int:
    return int(call.arguments["n_units"][0] * call.arguments["unit_bytes"][0])


def _seconds(tape: Tape, calls: Sequence[Call], worker_pool: WorkerPool, ahead: int) -> float:
    """Seconds of a run that prefetches like this."""
    for call in calls:
        call.arguments["ahead"] = ahead
    started = time.perf_counter()
    worker_pool.run(tape, WorkSplit.even(worker_pool.n_workers))
    return time.perf_counter() - started
