"""The description of a machine: cores, NUMA nodes, memory; and which cores to use before anything is measured.

Data and arithmetic. Knows no operating system: `linux`, `macos` and `windows` fill it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

CoreKind = Literal["performance", "efficiency", "low-power"]

_RANKS = MappingProxyType({"performance": 0, "efficiency": 1, "low-power": 2})


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
