"""The workers of a device: the cores they run on, and how they split the work of a step.

In: threads and cores chosen by the user, if any; a `Topology`; the profile and the model's work, if known; steps before
and after they run on a lane. Out: the `DeviceOptions` of a CPU device, and the kind of each worker's core; work splits,
which an `Adaptation` takes from the `Balance` before each step and reports the step's seconds to. While some workers
are left out, it also asks the system which cores are idle. Opens nothing, and knows nothing of what a step computes.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import psutil

from edgeinfer.backends.base import DeviceOptions, WorkSplit
from edgeinfer.backends.capabilities import Workers
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.graph.step import Batch
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import DeviceRates, Profile
from edgeinfer.scheduling.machine.topology import CoreKind, Topology
from edgeinfer.scheduling.workers.balance import Assignment, Balance
from edgeinfer.scheduling.workers.core_plan import CorePlan, core_plan
from edgeinfer.scheduling.workers.governor import PowerPolicy
from edgeinfer.scheduling.workers.shared_rates import with_cores

MOST_WORKERS = 256
"""The most workers of any device."""
DEPTH = 512
"""Cached tokens at which decoding is planned."""
PROMPT = 256
"""Tokens per prefill pass in the plan."""
LOOK_S = 0.05
"""Shortest interval over which the system's idle time is meaningful: it counts in hundredths of a second."""


@dataclass(frozen=True, slots=True)
class CorePlans:
    """Cores and shares for decoding (small passes) and for prefill (large ones)."""

    decode: CorePlan
    prefill: CorePlan

    @property
    def cores(self) -> tuple[int, ...]:
        """All cores of either plan, in increasing order."""
        return tuple(sorted({*self.decode.cores, *self.prefill.cores}))

    def shares(self, plan: CorePlan) -> tuple[float, ...]:
        """The share of each core in `cores`; 0 for cores the plan leaves out."""
        found = dict(zip(plan.cores, plan.shares, strict=True))
        return tuple(found.get(core, 0.0) for core in self.cores)


def core_plans(
    cpu: DeviceRates, work: ModelWork, kv: str = "f16", among: Collection[int] | None = None
) -> CorePlans | None:
    """Separate plans for decoding and prefill on these cores (None: all); None if their rates are unknown."""
    if not any(among is None or core.number in among for core in cpu.cores):
        return None
    return CorePlans(core_plan(cpu, work, Pass(1, DEPTH), kv, among), core_plan(cpu, work, Pass(PROMPT), kv, among))


def worker_pools_of(
    profile: Profile, work: ModelWork, kv: str = "f16", cores: Collection[int] | None = None
) -> tuple[Profile, Profile]:
    """The machine as decoding and as prefill see it: the cores their plans take, out of these (None: all)."""
    plans = core_plans(profile.cpu, work, kv, cores)
    if plans is None:
        machine = profile if cores is None else with_cores(profile, cores)
        return machine, machine
    return with_cores(profile, plans.decode.cores), with_cores(profile, plans.prefill.cores)


def known_core_plans(topology: Topology, work: ModelWork, kv: str = "f16") -> CorePlans | None:
    """Core plans for this machine, if it has been measured."""
    profile = ProfileStore().find(fingerprint_of(topology))
    return None if profile is None else core_plans(profile.cpu, work, kv)


def device_options(
    topology: Topology,
    threads: int | None = None,
    cores: Sequence[int] | None = None,
    plans: CorePlans | None = None,
) -> DeviceOptions:
    """Options to open the CPU device with. The user's choice overrides any plan.

    Workers are not pinned in a container whose quota is below its number of cores: other containers on the machine
    would choose the same cores.
    """
    if cores is not None:
        return DeviceOptions(threads, tuple(cores), n_nodes=_n_nodes(topology, cores))
    pins = topology.quota is None or topology.quota >= len(topology.cores)
    if threads is None and plans is not None:
        shares = plans.shares(plans.decode), plans.shares(plans.prefill)
        return DeviceOptions(len(plans.cores), plans.cores, True, pins, *shares, _n_nodes(topology, plans.cores))
    workers = topology.workers()
    return DeviceOptions(threads or len(workers), workers, pins=pins, n_nodes=_n_nodes(topology, workers))


def shared_cores(options: DeviceOptions, topology: Topology) -> tuple[int, ...]:
    """The cores that devices share: the user's choice if any. A core plan does not count: it is for the CPU alone."""
    asked = None if options.decode_shares else options.cores
    return (asked or topology.workers())[: None if options.decode_shares else options.n_workers]


def _n_nodes(topology: Topology, cores: Sequence[int]) -> int:
    """The number of NUMA nodes these cores belong to, at least 1."""
    return max(1, len({core.node for core in topology.cores if core.number in cores}))


def worker_kinds(options: DeviceOptions, topology: Topology) -> tuple[CoreKind, ...]:
    """The kind of each worker's core; workers take the cores in turn. An unknown core counts as a performance core."""
    kinds: dict[int, CoreKind] = {cpu: core.kind for core in topology.cores for cpu in core.cpus}
    cores = options.cores or (0,)
    n_workers = min(options.n_workers or len(cores), MOST_WORKERS)
    return tuple(kinds.get(cores[worker % len(cores)], "performance") for worker in range(n_workers))


@dataclass(slots=True)
class _OnLeave:
    """Unrecorded passes of one length: how many are left, and how many ran since the last recorded one."""

    work_split: WorkSplit
    n_left: int
    longest_s: float
    n_quiet: int = 0


class Adaptation:
    """Adapts the work split of a lane opened with `options`, starting from the shares they give."""

    def __init__(self, lane: Workers, options: DeviceOptions) -> None:
        self._lane = lane
        self._balance = Balance(lane.n_workers, options.decode_shares, options.prefill_shares)
        self._assignment: Assignment | None = None
        self._work_split = lane.work_split
        self._cores = options.cores
        self._policy: PowerPolicy | None = None
        self._limits: tuple[int, tuple[int, ...]] = (lane.n_workers, ())
        self._looked_s, self._idle_s = 0.0, 0.0
        self._leaves: dict[int, _OnLeave] = {}  # by tokens of a pass
        self._size = 0, 0  # tokens of the pass and the last one's position: the batch may hold megabytes of rows
        self._current: _OnLeave | None = None

    def limit(self, policy: PowerPolicy) -> None:
        """Apply a policy from the next step on. Returns at once if the policy is unchanged."""
        if policy is self._policy:
            return
        self._policy = policy
        if (limits := (policy.most_workers, policy.ranks)) != self._limits:
            self._limits = limits
            self._balance.limit(*limits)
            self._leaves.clear()

    def before(self, batch: Batch) -> None:
        """Set the work split for a batch that is about to run."""
        self._size = len(batch.tokens), int(batch.positions[-1])
        self._current = self._leaves.get(len(batch.tokens))
        if self._current is not None and self._current.n_left:
            self._lane.work_split = self._current.work_split
            return
        self._assign()
        self._lane.work_split = self._work_split

    def after(self) -> None:
        """Learn from the batch that has just run."""
        current, n_before = self._current, 0
        if current is not None:
            n_before = current.n_quiet
            if current.n_left and self._lane.seconds <= current.longest_s:
                current.n_left -= 1
                current.n_quiet += 1
                return
            if current.n_left:
                self._assign()
                if self._work_split != current.work_split:  # another length changed the split meanwhile
                    self._leaves.clear()
                    return
        timing = self._lane.timing
        self._balance.record(timing.seconds, timing.busy, n_before)
        leave = self._balance.leave
        if leave.n_steps:
            self._leaves[self._size[0]] = _OnLeave(self._work_split, leave.n_steps, leave.longest_s)
        else:
            self._leaves.clear()

    def _assign(self) -> None:
        if self._balance.wants_free_cores:
            self._look()
        assignment = self._balance.assign(*self._size)
        if assignment is not self._assignment:
            self._assignment = assignment
            self._work_split = WorkSplit(assignment.workers, assignment.cuts, assignment.pinned)

    def _look(self) -> None:
        """Report to the balance how many cores have been idle since the last call."""
        now = time.perf_counter()
        if (passed := now - self._looked_s) < LOOK_S:
            return
        idle_s = self._read_idle_s()
        if passed < 10 * LOOK_S:
            self._balance.note_free_cores((idle_s - self._idle_s) / passed)
        self._looked_s, self._idle_s = now, idle_s

    def _read_idle_s(self) -> float:
        """Seconds the cores have been idle, summed over all of them."""
        times = psutil.cpu_times(percpu=True)
        cores = range(len(times)) if self._cores is None else self._cores
        return float(sum(times[core].idle for core in cores if core < len(times)))
