"""Whether kernels should ask for memory ahead of the processor's own prefetching: measured, for processors differ.

In: a team and the calls of a tape. Out: the calls' argument records with `ahead` kept or set to 0. The largest product
of one token is run both ways; output bits are the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from edgeinfer.backends.base import Crew
from edgeinfer.backends.cpu.jit import KernelLibrary
from edgeinfer.backends.cpu.tape import Call, Tape
from edgeinfer.backends.cpu.team import Team

ROUNDS = 5
HARM = 1.05
"""Time with asking ahead, as a share of the time without it, from which on it is not done."""


def choose_ahead(calls: Sequence[Call], team: Team, library: KernelLibrary) -> bool:
    """Decide whether to ask ahead, and write it into the calls; they must be ready to run with one token."""
    asking = [call for call in calls if "ahead" in (call.arguments.dtype.names or ())]
    products = [call for call in asking if "unit_bytes" in (call.arguments.dtype.names or ())]
    if not products:
        return True
    largest = max(products, key=lambda call: int(call.arguments["n_units"][0] * call.arguments["unit_bytes"][0]))
    tape = Tape([largest], library)
    seconds: dict[int, list[float]] = {1: [], 0: []}
    for _ in range(ROUNDS):
        for ahead, taken in seconds.items():
            largest.arguments["ahead"] = ahead
            started = time.perf_counter()
            team.run(tape, Crew.even(team.n_workers))
            taken.append(time.perf_counter() - started)
    harms = min(seconds[1]) > HARM * min(seconds[0])
    for call in asking:
        call.arguments["ahead"] = 0 if harms else 1
    return not harms
