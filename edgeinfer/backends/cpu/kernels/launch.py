"""The loops of a team: run a tape, wait at barriers, publish and await launches.

Memory: a CONTROL record shared by all workers; a tape int64[n, ENTRY_INTS] of (kernel address, argument record, barrier
before it, unused); one flag int64 per worker, LINE bytes apart. Only worker 0 writes the record, between launches. The
calling thread may be interrupted between any two calls from Python, so each leaves the record fit for the next one.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import carray

from edgeinfer.backends.cpu import simd
from edgeinfer.backends.cpu.jit import inline
from edgeinfer.backends.cpu.kernels.crew import size

ENTRY_INTS = 4
LINE = 128
"""Bytes between the flags of two workers: no two share a cache line."""
SPINS_BEFORE_YIELD = 2000
TEAM_LIMIT = 1024

CONTROL = np.dtype(
    [
        ("launch", "i8"),  # launches so far * TEAM_LIMIT + team of the last; workers wait for it to move
        ("pad", "i8", (15,)),
        ("tape", "i8"),
        ("n_entries", "i8"),
        ("crew", "i8"),  # address of the crew of this launch
        ("flags", "i8"),  # address of one barrier flag per worker, LINE bytes apart
        ("yield_at", "i8"),  # C function that gives up the core
        ("stopping", "i8"),
        ("barriers", "i8"),  # barriers passed before this launch
        ("barriers_after", "i8"),  # barriers passed when it has ended
        ("finished", "i8"),  # the launch word whose tape worker 0 has run to its end
    ]
)

control_at = simd.record_pointer(numba.from_dtype(CONTROL))


@inline
def wait_for_others(control, worker, team, passed):
    """Barrier: raise the own flag to `passed`, wait for the flags of the team."""
    simd.store_release(control.flags + worker * LINE, passed)
    for other in range(team):
        spins = 0
        while simd.load_acquire(control.flags + other * LINE) < passed:
            simd.pause()
            spins += 1
            if spins > SPINS_BEFORE_YIELD and control.yield_at != 0:
                simd.call_plain(control.yield_at)
                spins = 0


def run_tape(control_address, worker):
    """Run the launched tape as one worker of the team."""
    control = carray(control_at(control_address), 1)[0]
    crew, passed = control.crew, control.barriers
    team = size(crew)
    for place in range(control.n_entries):
        entry = control.tape + place * ENTRY_INTS * 8
        kernel, arguments = simd.load_int64(entry), simd.load_int64(entry + 8)  # the last barrier frees the tape
        if simd.load_int64(entry + 16) != 0:
            passed += 1
            if team > 1:
                wait_for_others(control, worker, team, passed)
        if kernel != 0:
            simd.call_kernel(kernel, arguments, worker, crew)
    if worker == 0:
        control.finished = control.launch


def launch(control_address, tape, n_entries, n_barriers, team):
    """Publish a tape for the first `team` workers, who are the crew: they start at once."""
    control = carray(control_at(control_address), 1)[0]
    control.tape = tape
    control.n_entries = n_entries
    control.barriers = control.barriers_after
    control.barriers_after += n_barriers
    number = control.launch // TEAM_LIMIT + 1
    simd.store_release(control_address, number * TEAM_LIMIT + team)


def wait_for_launch(control_address, seen, spins):
    """Spin until another launch than `seen`; returns its word, or `seen` after so many spins."""
    for _ in range(spins):
        found = simd.load_acquire(control_address)
        if found != seen:
            return found
        simd.pause()
    return seen
