"""Other load: the share of CPU time that other processes use, which ones, and the share that a host takes away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine, SampledInterval
from edgeinfer.engine.measure.idle import NEEDED_SHARE
from edgeinfer.scheduling.machine.topology.linux_files import list_of

SHOWN = 3
SHOWN_CORES = 0.03
"""A process that uses less of a core than this is not worth naming."""
STEAL_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Busy:
    """A process name and the number of cores it used."""

    name: str
    cores: float


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """Shares are of all logical CPUs' time; None if nothing was counted. `busiest`: the busiest processes first."""

    idle_share: float | None = None
    steal_share: float | None = None
    n_logical: int = 1
    threads_per_core: float = 1.0
    n_workers: int = 1
    busiest: tuple[Busy, ...] = ()


def read(machine: ExaminedMachine) -> MachineLoad:
    """Read the counters of the sampled half second."""
    topology, window = machine.topology, machine.window
    online = list_of(machine.root / "sys/devices/system/cpu/online")
    processors_s = window.after.processors_s - window.before.processors_s
    steal_s = window.after.steal_s - window.before.steal_s
    return MachineLoad(
        idle_share=window.idle_share,
        steal_share=steal_s / processors_s if processors_s > 0 else None,
        n_logical=len(online) or topology.n_installed or 1,
        threads_per_core=max((len(core.cpus) for core in topology.cores), default=1),
        n_workers=len(topology.workers()),
        busiest=busiest(window),
    )


def busiest(window: SampledInterval) -> tuple[Busy, ...]:
    """Processes by CPU time used between the counters; those with the same name are added up."""
    before = {process.pid: process.cpu_s for process in window.before.processes}
    taken: dict[str, float] = {}
    for process in window.after.processes:
        seconds = process.cpu_s - before.get(process.pid, 0.0)
        if seconds > 0 and window.seconds > 0:
            taken[process.name] = taken.get(process.name, 0.0) + seconds / window.seconds
    found = [Busy(name, cores) for name, cores in taken.items() if cores >= SHOWN_CORES]
    return tuple(sorted(found, key=lambda each: (-each.cores, each.name))[:SHOWN])


def judge(facts: MachineLoad) -> Sequence[Finding]:
    """Whether other processes leave the cores that workers need, by the rule of `engine.measure.idle.is_busy`."""
    findings = []
    if facts.idle_share is not None:
        others = 1 - facts.idle_share
        names = ", ".join(f"{each.name} {each.cores:.2f}" for each in facts.busiest)
        used = f"{others * facts.n_logical:.2f} of {facts.n_logical}"
        message = f"others use {100 * others:.0f} % of the processors' time, {used}"
        message += f": {names}" if names else ""
        needed = min(facts.n_logical, facts.n_workers * facts.threads_per_core)
        is_busy = facts.idle_share * facts.n_logical < NEEDED_SHARE * needed
        fix = "close or pause them while answers are written, or wait until they are done" if is_busy else None
        findings.append(Finding("load", "slow" if is_busy else "ok", message, fix, round(100 * others, 1), "%"))
    if facts.steal_share is not None and facts.steal_share >= STEAL_SHARE:
        message = f"the host takes {100 * facts.steal_share:.0f} % of this virtual machine's processor time for others"
        fix = "a quieter hour, or an instance with processors of its own (not a burstable or shared one)"
        findings.append(Finding("steal", "slow", message, fix, round(100 * facts.steal_share, 1), "%"))
    return findings


CHECK = Check(order=30, summary="what else runs", read=read, judge=judge, unknown=MachineLoad())
