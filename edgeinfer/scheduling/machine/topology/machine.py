"""The description of a machine: cores and their kinds, NUMA nodes, memory; and which cores to use before measurements.

Data and arithmetic. A kind follows from what the system reports: names, and numbers that grow with a core's speed; it
only decides which cores take part at first, measured speeds decide their shares. Knows no operating system: `linux`,
`macos` and `windows` fill it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

CoreKind = Literal["performance", "efficiency", "low-power"]

_RANKS = MappingProxyType({"performance": 0, "efficiency": 1, "low-power": 2})
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


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core.

    `cpus`: its hardware threads this process may use, increasing; a worker is pinned to the first. `l2`, `l3`: cores
    with equal numbers share that cache; `l3` is -1 if there is none or it is not reported. `max_hz`: the highest clock
    the system reports.
    """

    cpus: tuple[int, ...]
    kind: CoreKind
    node: int
    package: int
    l2: int
    l3: int
    max_hz: float | None

    @property
    def number(self) -> int:
        return self.cpus[0]


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node: its cores that this process may use, and its memory. Either may be absent.

    `total_bytes`: 0 if it has none, if this process may not use any, or if it is not reported. `distances`: to each
    node in order, 10 is itself, 20 twice as far; () if unknown.
    """

    number: int
    cores: tuple[int, ...]
    total_bytes: int
    free_bytes: int | None
    distances: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """What this process may use of the machine.

    `n_installed`: logical CPUs of the machine. `quota`: CPUs' worth of time that the container may use, None without a
    limit. `smt`: whether any core of the machine runs several threads. `l2_bytes`, `l3_bytes`: of the largest single
    cache, 0 if unknown. Both memory sizes are within the container's limit, 0 if unknown.
    """

    cores: tuple[Core, ...]
    nodes: tuple[Node, ...]
    n_installed: int
    quota: float | None
    smt: bool
    l2_bytes: int
    l3_bytes: int
    total_bytes: int
    available_bytes: int

    def workers(self) -> tuple[int, ...]:
        """The CPUs to compute on before anything is measured, one per core, increasing.

        Every performance and efficiency core; low-power ones only if there are no others. A quota limits them to as
        many as it can keep busy: the fastest, and among equally fast ones those of one node.
        """
        cores = [core for core in self.cores if core.kind != "low-power"] or list(self.cores)
        cores.sort(key=lambda core: (_RANKS[core.kind], -(core.max_hz or 0.0), core.node, core.number))
        n_workers = len(cores) if self.quota is None else max(1, math.ceil(self.quota))
        return tuple(sorted(core.number for core in cores[:n_workers]))


def group_numbers(keys: Iterable[Hashable | None]) -> tuple[int, ...]:
    """Equal keys get equal numbers, counted from 0 in order of appearance; None gets -1."""
    numbers: dict[Hashable, int] = {}
    return tuple(-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys)


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
