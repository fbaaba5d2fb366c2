"""Cores, shared caches and NUMA nodes of a Linux machine, from sysfs and procfs, live or recorded.

In: the root of a machine and the CPUs allowed. Out: a `Topology`; every core belongs to exactly one node. A container
may see any part of these files or none: a CPU without information is a core of its own, and a cache without information
is not shared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.scheduling.machine.topology.linux_files import (
    allowed_cpus,
    list_of,
    listed_cores,
    number_of,
    numbered,
    parse_number,
    read_cpuset,
    read_quota,
    size_of,
    text_of,
)
from edgeinfer.scheduling.machine.topology.machine import (
    Core,
    CoreKind,
    Node,
    Topology,
    group_numbers,
    kinds_by_capacity,
    kinds_by_clock,
    with_islands,
)
from edgeinfer.scheduling.machine.topology.memory import MachineMemory, read_memory, read_node_memory

CPUS = "sys/devices/system/cpu"
Threads = tuple[int, ...]
"""The hardware threads of a core, increasing."""


def read_linux(root: Path, affinity: Iterable[int] | None = None) -> Topology:
    """The machine below `root`, restricted to the CPUs of `affinity`, or to those recorded as allowed."""
    folder = root / CPUS
    online = list_of(folder / "online") or numbered(folder, "cpu") or tuple(listed_cores(root))
    usable = frozenset(_usable(root, online, affinity))
    installed = _threads_of_cores(root, sorted(usable.union(online)))
    level2, level3 = read_caches(folder, [threads[0] for threads in installed])
    kinds = dict(zip(installed, _kinds(root, installed, level3), strict=True))
    cores = {kept: threads for threads in installed if (kept := tuple(cpu for cpu in threads if cpu in usable))}
    whole = read_memory(root)
    numa = read_nodes(root, sorted(cpus[0] for cpus in cores), whole)
    return Topology(
        cores=_cores(folder, cores, kinds, (level2, level3), numa),
        nodes=numa,
        n_installed=len(list_of(folder / "present")) or len(online) or len(usable),
        quota=read_quota(root),
        smt=any(len(threads) > 1 for threads in installed),
        l2_bytes=level2.n_bytes,
        l3_bytes=level3.n_bytes,
        total_bytes=whole.total_bytes,
        available_bytes=whole.available_bytes,
    )


def _usable(root: Path, online: Sequence[int], affinity: Iterable[int] | None) -> Iterable[int]:
    """The CPUs of the affinity; for a recorded machine, the allowed ones that are online, since files name others too.

    An affinity is not restricted further: some containers show renumbered CPUs in their files, the system call never
    does.
    """
    if affinity is not None and (asked := sorted(affinity)):
        return asked
    allowed = allowed_cpus(root) or read_cpuset(root) or online
    return [cpu for cpu in allowed if cpu in online] or allowed or [0]


def _threads_of_cores(root: Path, cpus: Sequence[int]) -> list[Threads]:
    """`cpus` by physical core: by sysfs' siblings, else by the core numbers of `/proc/cpuinfo`, else one each."""
    listed: Mapping[int, tuple[str, str] | None] | None = None
    cores: dict[Hashable, list[int]] = {}
    for cpu in cpus:
        folder = root / CPUS / f"cpu{cpu}/topology"
        siblings = list_of(folder / "core_cpus_list") or list_of(folder / "thread_siblings_list")
        key: Hashable = siblings
        if not siblings:
            listed = listed_cores(root) if listed is None else listed
            key = listed.get(cpu) or cpu
        elif cpu not in siblings:
            key = cpu
        cores.setdefault(key, []).append(cpu)
    return [tuple(threads) for threads in cores.values()]


def _kinds(root: Path, cores: Sequence[Threads], level3: Level) -> tuple[CoreKind, ...]:
    """The kind of each core: by the names of Intel's performance counters, else by the first numbers that differ."""
    performance, efficiency, low_power = (
        set(list_of(root / f"sys/devices/{name}/cpus")) for name in ("cpu_core", "cpu_atom", "cpu_lowpower")
    )
    if performance and (efficiency or low_power):
        kinds: tuple[CoreKind, ...] = tuple(
            "low-power" if threads[0] in low_power else "efficiency" if threads[0] in efficiency else "performance"
            for threads in cores
        )
    else:
        kinds = _kinds_by_numbers(root / CPUS, cores)
    return with_islands(kinds, [threads[0] in level3.sharers for threads in cores])


def _kinds_by_numbers(folder: Path, cores: Sequence[Threads]) -> tuple[CoreKind, ...]:
    kinds: tuple[CoreKind, ...] = ()
    for name, kinds_by in (
        ("cpu_capacity", kinds_by_capacity),
        ("cpufreq/cpuinfo_max_freq", kinds_by_clock),
        ("acpi_cppc/highest_perf", kinds_by_clock),
    ):
        kinds = kinds_by([number_of(folder / f"cpu{threads[0]}" / name) for threads in cores])
        if "efficiency" in kinds:
            break
    return kinds


def _cores(
    folder: Path,
    cores: Mapping[Threads, Threads],
    kinds: Mapping[Threads, CoreKind],
    levels: tuple[Level, Level],
    numa: Sequence[Node],
) -> tuple[Core, ...]:
    """Cores by number. `cores`: the usable threads of each, with all its threads, the first of which is inspected."""
    node_of = {number: node.number for node in numa for number in node.cores}
    ordered = sorted(cores)
    firsts = [cores[cpus][0] for cpus in ordered]
    l2 = group_numbers(levels[0].sharers.get(first, (first,)) for first in firsts)
    l3 = group_numbers(levels[1].sharers.get(first) for first in firsts)
    return tuple(
        Core(
            cpus=cpus,
            kind=kinds[cores[cpus]],
            node=node_of[cpus[0]],
            package=max(0, number_of(folder / f"cpu{first}/topology/physical_package_id") or 0),
            l2=l2[place],
            l3=l3[place],
            max_hz=_max_hz(folder / f"cpu{first}"),
        )
        for place, (cpus, first) in enumerate(zip(ordered, firsts, strict=True))
    )


def _max_hz(folder: Path) -> float | None:
    kilohertz = number_of(folder / "cpufreq/cpuinfo_max_freq")
    return kilohertz * 1e3 if kilohertz and kilohertz > 0 else None


@dataclass(frozen=True, slots=True)
class Level:
    """The caches of one level: the CPUs sharing each CPU's cache (none for a CPU without one) and the largest size."""

    sharers: Mapping[int, tuple[int, ...]]
    n_bytes: int


def read_caches(folder: Path, cpus: Iterable[int]) -> tuple[Level, Level]:
    """The caches of level 2 and of level 3 of some CPUs, from `folder`/cpuN/cache.

    CPUs already listed as sharing both caches of another one are not read: reading files takes long on large machines.
    """
    sharers: dict[int, dict[int, tuple[int, ...]]] = {2: {}, 3: {}}
    sizes = {2: 0, 3: 0}
    for cpu in cpus:
        if cpu in sharers[2] and cpu in sharers[3]:
            continue
        caches = folder / f"cpu{cpu}/cache"
        for index in numbered(caches, "index"):
            cache = caches / f"index{index}"
            level = number_of(cache / "level")
            if level not in sharers or cpu in sharers[level]:
                continue
            group = list_of(cache / "shared_cpu_list")
            group = group if cpu in group else (cpu,)
            sizes[level] = max(sizes[level], size_of(cache / "size"))
            sharers[level] |= {sharer: group for sharer in group if sharer not in sharers[level]}
    return Level(sharers[2], sizes[2]), Level(sharers[3], sizes[3])


def read_nodes(root: Path, cores: Sequence[int], whole: MachineMemory) -> tuple[Node, ...]:
    """The nodes of a machine by number; a single one has the `whole` memory."""
    memories = read_node_memory(root)
    if len(memories) < 2:
        memories = {min(memories, default=0): whole}
    folders = {number: root / f"sys/devices/system/node/node{number}" for number in memories}
    members: dict[int, list[int]] = {number: [] for number in memories}
    node_of: dict[int, int] = {}
    for number, folder in folders.items():
        for cpu in list_of(folder / "cpulist"):
            node_of.setdefault(cpu, number)
    for core in cores:
        members[node_of.get(core, min(members))].append(core)
    return tuple(
        Node(
            number,
            tuple(members[number]),
            memories[number].total_bytes,
            memories[number].available_bytes,
            _distances(folder, len(folders)),
        )
        for number, folder in folders.items()
    )


def _distances(folder: Path, n_nodes: int) -> tuple[int, ...]:
    distances = [parse_number(word) for word in text_of(folder / "distance").split()]
    known = tuple(distance for distance in distances if distance is not None and distance > 0)
    return known if len(known) == len(distances) == n_nodes else ()
