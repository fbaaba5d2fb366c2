"""The workers of a device: from the user's choice, the topology, and core plans from the machine's profile.

In: threads and cores chosen by the user, if any; a `Topology`; the profile and the model's work, if known. Out: the
`DeviceOptions` of a CPU device, and the kind of each worker's core. Opens nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import ModelWork
from edgeinfer.scheduling.machine.profile import DeviceRates, Profile
from edgeinfer.scheduling.machine.topology import CoreKind, Topology
from edgeinfer.scheduling.workers.core_plan import CorePlan, core_plan
from edgeinfer.scheduling.workers.shared_rates import with_cores

MOST_WORKERS = 256
"""The most workers of any device."""
DEPTH = 512
"""Cached tokens at which decoding is planned."""
PROMPT = 256
"""Tokens per prefill pass in the plan."""


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
