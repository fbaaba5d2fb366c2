"""Distinguishes performance, efficiency and low-power cores by what the system reports.

In: each core's name, and numbers that grow with its speed. Out: a kind per core, in the same order. Measures nothing: a
kind only decides which cores take part at first; measured speeds decide their shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from edgeinfer.scheduling.machine.topology.machine import CoreKind

LITTLE_CAPACITY = 0.6
"""Share of the largest capacity below which an ARM core is an efficiency core: little cores have a quarter (A510 beside
X3) to a half of it (A55 beside A76), middle ones more than 60 %, and those compute as performance cores do."""
SLOW_CLOCK = 0.78
"""Share of the highest clock below which cores may be of another kind: Zen 5c and 4c have 64 to 76 % of it; favoured
cores and the second chiplet of a desktop have 88 % and more."""
CLOCK_GAP = 0.85
"""Such cores must also be this much slower than the next faster core. AMD ranks equal cores in steps of 2 or 3 % of
"highest performance", from 241 down to 166: none of these steps is a gap, though the ends are as far apart as two
kinds."""


def kinds_by_capacity(capacities: Sequence[float | None]) -> tuple[CoreKind, ...]:
    """Kinds of ARM cores by their computing capacity, as the kernel's scheduler sees it; None: not reported."""
    largest = max((capacity for capacity in capacities if capacity), default=0.0)
    return tuple(
        "efficiency" if capacity and capacity < LITTLE_CAPACITY * largest else "performance" for capacity in capacities
    )


def kinds_by_clock(clocks: Sequence[float | None]) -> tuple[CoreKind, ...]:
    """Kinds of cores by their highest clocks, or by any ranking in proportion to them; None: not reported."""
    distinct = sorted({clock for clock in clocks if clock and clock > 0}, reverse=True)
    border = 0.0
    for faster, slower in pairwise(distinct):
        if slower < CLOCK_GAP * faster and slower < SLOW_CLOCK * distinct[0]:
            border = slower
            break
    return tuple("efficiency" if clock and 0 < clock <= border else "performance" for clock in clocks)


def with_islands(kinds: Sequence[CoreKind], have_l3: Sequence[bool]) -> tuple[CoreKind, ...]:
    """Efficiency cores without a third-level cache count as low-power where other efficiency cores have one.

    That is how the low-power islands of Meteor, Arrow and Panther Lake look when nothing names them. In Lunar Lake no
    efficiency core has one: those are half of its cores and fast, and stay efficiency cores.
    """
    split = any(kind == "efficiency" and l3 for kind, l3 in zip(kinds, have_l3, strict=True))
    return tuple(
        "low-power" if split and kind == "efficiency" and not l3 else kind
        for kind, l3 in zip(kinds, have_l3, strict=True)
    )
