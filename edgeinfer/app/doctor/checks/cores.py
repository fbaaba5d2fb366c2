"""How many of the cores compute: affinity, cpuset, container quota, kinds of cores, cores that are offline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine
from edgeinfer.scheduling.machine.topology import CoreKind
from edgeinfer.scheduling.machine.topology.linux_files import list_of, text_of

CPUS = "sys/devices/system/cpu"
SMT_OFF = ("off", "forceoff")


@dataclass(frozen=True, slots=True)
class CoreCounts:
    """Logical CPUs `n_present`, `n_online` and `n_usable`; kinds of the usable cores and of those that are `computing`.

    `quota`: CPU time limit, in CPUs; `smt_control`: Linux's setting for hardware threads, "" if unknown.
    """

    n_present: int = 0
    n_online: int = 0
    n_usable: int = 0
    kinds: tuple[CoreKind, ...] = ()
    computing: tuple[CoreKind, ...] = ()
    smt: bool = False
    smt_control: str = ""
    quota: float | None = None


def read(machine: ExaminedMachine) -> CoreCounts:
    """Read the topology, and which CPUs are offline."""
    topology = machine.topology
    workers = set(topology.workers())
    folder = machine.root / CPUS
    return CoreCounts(
        n_present=topology.n_installed,
        n_online=len(list_of(folder / "online")) or topology.n_installed,
        n_usable=sum(len(core.cpus) for core in topology.cores),
        kinds=tuple(core.kind for core in topology.cores),
        computing=tuple(core.kind for core in topology.cores if core.number in workers),
        smt=topology.smt,
        smt_control=text_of(folder / "smt/control"),
        quota=topology.quota,
    )


def judge(facts: CoreCounts) -> Sequence[Finding]:
    """Whether all cores may compute, all of the time."""
    return [*_usable(facts), *_offline(facts), *_quota(facts)]


def _usable(facts: CoreCounts) -> Iterator[Finding]:
    n_cores, n_computing = len(facts.kinds), len(facts.computing)
    if not n_cores:
        return
    message = f"{n_computing} of {n_cores} cores compute{_by_kind(facts.computing)}"
    if facts.smt:
        message += ", one thread each"
    left = Counter(facts.kinds) - Counter(facts.computing)
    if left["low-power"] and n_computing:
        message += f"; {left['low-power']} low-power left out, which would hold up the others"
    if facts.n_usable < facts.n_online:
        message = f"{facts.n_usable} of {facts.n_online} processors may be used (affinity or cpuset): {message}"
        fix = "start it without taskset, or give the container more (docker: --cpuset-cpus)"
        yield Finding("cores", "slow", message, fix, n_computing, "cores")
    else:
        yield Finding("cores", "ok", message, value=n_computing, unit="cores")


def _by_kind(kinds: Sequence[CoreKind]) -> str:
    """Kinds of cores with their counts, if there is more than one kind."""
    counts = Counter(kinds)
    parts = [f"{counts[kind]} {kind}" for kind in get_args(CoreKind) if counts[kind]]
    return f" ({', '.join(parts)})" if len(parts) > 1 else ""


def _offline(facts: CoreCounts) -> Iterator[Finding]:
    n_offline = facts.n_present - facts.n_online
    if n_offline > 0 and facts.smt_control not in SMT_OFF:  # second threads that are switched off are no loss
        fix = "switch on what should be: echo 1 | sudo tee /sys/devices/system/cpu/cpu<N>/online"
        message = f"{n_offline} of {facts.n_present} processors are switched off"
        yield Finding("cores-offline", "slow", message, fix, n_offline, "processors")


def _quota(facts: CoreCounts) -> Iterator[Finding]:
    quota, n_cores = facts.quota, len(facts.kinds)
    if quota is None:
        return
    whole, has = int(quota), f"the container may use {quota:g} processors' time"
    if quota >= n_cores:
        yield Finding("quota", "ok", f"{has}, no less than {n_cores} cores need", value=quota, unit="processors")
    elif quota == whole:
        fix = f"more of it, if there is (docker: --cpus {n_cores})"
        yield Finding("quota", "note", f"{has}, of {n_cores} cores", fix, quota, "processors")
    else:
        fewer = f", or use {whole} (edgeinfer config set threads {whole})" if whole else ""
        message = f"{has}: the workers spend it early, and are stopped for the rest of each period"
        yield Finding(
            "quota", "slow", message, f"a whole number: docker --cpus {whole + 1}{fewer}", quota, "processors"
        )


CHECK = Check(order=20, summary="cores and quota", read=read, judge=judge, unknown=CoreCounts())
