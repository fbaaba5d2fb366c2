"""The loops of a worker pool: run a tape, wait at barriers, publish and await launches.

Memory: a CONTROL record shared by all threads; a tape int64[n, ENTRY_INTS] of (kernel address, argument record, barrier
before it, serial, record of the product that comes next or 0); per worker LINE bytes for its barrier flag and its
METER. Only the caller writes the record, between launches. The calling thread may be interrupted between any two calls
from Python, so each call leaves the record valid for the next one. A thread takes part in a launch as worker `w` if its
seat holds the launch's number and w. A worker that waits at a barrier fetches the first weights of its share of the
next product into its cache: products read at memory's limit, and waiting would leave memory idle.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu.kernels.work_split import fence, share_start, size, ticks
from edgeinfer.backends.cpu.layout.records import CONTROL, ENTRY_INTS, LINE, NOT_SLOWED, PRODUCT, WORKER_POOL_LIMIT
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

SPINS_BEFORE_YIELD = 2000
MOST_FETCHED = 128 << 10
"""Bytes of each of two panels that a waiting worker fetches: together half of a common second cache."""
control_at, product_at = simd.record_at(CONTROL), simd.record_at(PRODUCT)


@inline
def first_weights(address, worker, work_split):
    """Where a worker reads first in a product: a line, bytes to the line read beside it and to the next, and the end.

    Small panels follow one another; of large ones, or of a gate and an up matrix, two are read side by side.
    """
    if address == 0:
        return np.int64(0), np.int64(0), np.int64(64), np.int64(0)
    args = product_at(address)
    first, stop = share_start(work_split, worker, args.n_units), share_start(work_split, worker + 1, args.n_units)
    start, n_bytes = args.weights + first * args.unit_bytes, (stop - first) * args.unit_bytes
    if args.second < min(args.unit_bytes, MOST_FETCHED):
        return start, np.int64(64), np.int64(128), start + min(n_bytes, 2 * MOST_FETCHED)
    return start, args.second, np.int64(64), start + min(n_bytes, MOST_FETCHED)


@inline
def wait_for_others(control, worker, worker_pool, passed, following):
    """Barrier: raise this worker's flag to `passed`, then wait for the flags of the other workers."""
    at, beside, step, stop = following
    simd.store_release(control.flags + worker * LINE, passed)
    for other in range(worker_pool):
        spins = 0
        while simd.load_acquire(control.flags + other * LINE) < passed:
            if at < stop:
                simd.prefetch(at)
                simd.prefetch(at + beside)
                at += step
            else:
                simd.pause()
            spins += 1
            if spins > SPINS_BEFORE_YIELD and control.yield_at != 0:
                simd.call_plain(control.yield_at)
                spins = 0


@inline
def dawdle(slowness, started):
    """Wait as long as a slowed worker would still need for a call that began at `started`."""
    until = started + (ticks() - started) * slowness // NOT_SLOWED
    while ticks() < until:
        simd.pause()


@inline
def run_tape(control, thread, worker):
    """Run the published tape as one worker of the worker pool."""
    work_split, passed = control.work_split, control.barriers
    worker_pool = size(work_split)
    record = control.record + (worker * control.n_entries) * 16 if control.record != 0 else 0
    slowness = simd.load_int64(control.slowness + 8 * thread) if control.slowness != 0 else NOT_SLOWED
    meter, busy, entered = control.meters + worker * LINE, 0, ticks()
    for place in range(control.n_entries):
        entry = control.tape + place * ENTRY_INTS * 8
        kernel, arguments = simd.load_int64(entry), simd.load_int64(entry + 8)  # the last barrier frees the tape
        serial = simd.load_int64(entry + 24)
        arrived = ticks() if record != 0 else 0
        if simd.load_int64(entry + 16) != 0:
            passed += 1
            if kernel == 0:  # other workers may read the meter after the last barrier
                simd.store_int64(meter, busy)
                simd.store_int64(meter + 8, ticks() - entered)
            if worker_pool > 1:
                following = first_weights(simd.load_int64(entry + 32), worker, work_split)
                wait_for_others(control, worker, worker_pool, passed, following)
        if record != 0:
            simd.store_int64(record + 16 * place, ticks() - arrived)
        if kernel == 0:
            continue
        if serial != 0 and record == 0 and slowness == NOT_SLOWED:
            simd.call_kernel(kernel, arguments, worker, work_split)
            continue
        started = ticks()
        simd.call_kernel(kernel, arguments, worker, work_split)
        if slowness != NOT_SLOWED:
            dawdle(slowness, started)
        spent = ticks() - started
        if serial == 0:
            busy += spent
        if record != 0:
            simd.store_int64(record + 16 * place + 8, spent)
    return passed


@inline
def publish(control, tape, n_entries, work_split, members):
    """Assign seats to the workers of a split and publish a tape; returns whether any of their threads must be woken."""
    control.tape = tape
    control.n_entries = n_entries
    control.work_split = work_split
    control.stand_in = simd.load_int64(members)
    number = control.launch + 1
    for worker in range(1, size(work_split)):
        thread = simd.load_int64(members + 8 * worker)
        simd.store_int64(control.seats + 8 * thread, number * WORKER_POOL_LIMIT + worker)
    simd.store_release(control.launch_at, number)
    fence()  # pairs with the one in `doze`: a thread sees its seat, or is seen asleep
    sleepers = 0
    for worker in range(1, size(work_split)):
        sleepers += simd.load_acquire(control.asleep + 8 * simd.load_int64(members + 8 * worker))
    return sleepers != 0


def lead(control_address, tape, n_entries, work_split, members):
    """Publish a tape for a work split and run it as worker 0; or return 1 first if one of its workers must be woken.

    `members`: int64[workers], their threads; the caller stands in for the first. Without a tape: run what was published
    before, unless that was done already.
    """
    control = control_at(control_address)
    if tape != 0 and publish(control, tape, n_entries, work_split, members):
        return 1
    if control.finished != control.launch:
        control.barriers = run_tape(control, control.stand_in, np.int64(0))
        control.finished = control.launch
    return 0


def serve(control_address, thread, seen, patience):
    """Take part in launches after `seen` as one of the threads; returns the last launch seen when it should sleep.

    It should sleep if no launch came for `patience` ticks, or if one came without this thread: its core may be needed.
    """
    control = control_at(control_address)
    idle_since = ticks()
    while True:
        found = simd.load_acquire(control_address)
        if found == seen:
            if ticks() - idle_since > patience:
                return seen
            simd.pause()
            continue
        seen = found
        seat = simd.load_int64(control.seats + 8 * thread)
        if seat // WORKER_POOL_LIMIT != found:  # not of this split: the record may belong to the next launch by now
            return seen
        run_tape(control, thread, seat % WORKER_POOL_LIMIT)
        idle_since = ticks()


def doze(control_address, thread):
    """Announce that a thread is about to sleep; returns its seat."""
    control = control_at(control_address)
    simd.store_release(control.asleep + 8 * thread, 1)
    fence()
    return simd.load_acquire(control.seats + 8 * thread)


def read_ticks():
    """The time stamp counter, for Python."""
    return ticks()


def nothing(pointer, worker, work_split):
    """A kernel that does nothing, to measure what a call costs."""
