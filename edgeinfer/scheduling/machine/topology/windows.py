"""Cores of a Windows machine.

In: the result of `GetLogicalProcessorInformationEx`, the process's affinity, free memory per node. Out: a `Topology`,
its CPUs numbered as in `records`. Affinity is respected on machines with one processor group: a process on several has
no mask. Clocks, limits of job objects and total memory per node are not read.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection, Mapping

import psutil

from edgeinfer.scheduling.machine.topology.counted import count_machine, system_memory
from edgeinfer.scheduling.machine.topology.kinds import with_islands
from edgeinfer.scheduling.machine.topology.machine import Core, CoreKind, Node, Topology, group_numbers
from edgeinfer.scheduling.machine.topology.memory import MachineMemory
from edgeinfer.scheduling.machine.topology.records import GROUP_SIZE, CoreRecord, Cpus, Records, parse_records

ALL_RELATIONSHIPS = 0xFFFF


def read_windows() -> Topology:
    """This machine."""
    told, memory = parse_records(_system_records()), system_memory()
    if not told.cores:
        return count_machine()
    one_group = told.cores[-1].cpus[-1] < GROUP_SIZE
    allowed = frozenset(psutil.Process().cpu_affinity() or ()) if one_group else frozenset[int]()
    return topology_of(told, memory, allowed, _free_bytes([number for number, _ in told.nodes]))


def topology_of(
    told: Records, memory: MachineMemory, allowed: Collection[int] = (), free_bytes: Mapping[int, int] | None = None
) -> Topology:
    """The machine that records describe, restricted to the `allowed` CPUs if it has any of them.

    `free_bytes`: free memory of the nodes for which it is known.
    """
    used = {core: cpus for core in told.cores if (cpus := tuple(cpu for cpu in core.cpus if cpu in allowed))}
    used = used or {core: core.cpus for core in told.cores}
    sharers = [
        {cpu: cache.cpus for cache in told.caches if cache.level == level for cpu in cache.cpus} for level in (2, 3)
    ]
    kinds = dict(zip(told.cores, _kinds(told.cores, sharers[1]), strict=True))
    node_of = {cpu: number for number, cpus in sorted(told.nodes, reverse=True) for cpu in cpus}
    package_of = {cpu: package for package, cpus in enumerate(told.packages) for cpu in cpus}
    l2 = group_numbers(sharers[0].get(core.cpus[0], core.cpus) for core in used)
    l3 = group_numbers(sharers[1].get(core.cpus[0]) for core in used)
    cores = [
        Core(cpus, kinds[core], node_of.get(cpus[0], 0), package_of.get(cpus[0], 0), l2[place], l3[place], None)
        for place, (core, cpus) in enumerate(used.items())
    ]
    cores.sort(key=lambda core: core.number)
    return Topology(
        cores=tuple(cores),
        nodes=_nodes(cores, [number for number, _ in told.nodes], memory, free_bytes or {}),
        n_installed=sum(len(core.cpus) for core in told.cores),
        quota=None,
        smt=any(len(core.cpus) > 1 for core in told.cores),
        l2_bytes=max((cache.n_bytes for cache in told.caches if cache.level == 2), default=0),
        l3_bytes=max((cache.n_bytes for cache in told.caches if cache.level == 3), default=0),
        total_bytes=memory.total_bytes,
        available_bytes=memory.available_bytes,
    )


def _kinds(cores: Collection[CoreRecord], l3: Mapping[int, Cpus]) -> tuple[CoreKind, ...]:
    """The highest efficiency class has the performance cores: Windows gives faster cores higher classes."""
    fastest = max(core.efficiency_class for core in cores)
    kinds: list[CoreKind] = ["performance" if core.efficiency_class == fastest else "efficiency" for core in cores]
    return with_islands(kinds, [core.cpus[0] in l3 for core in cores])


def _nodes(
    cores: Collection[Core], numbers: Collection[int], memory: MachineMemory, free_bytes: Mapping[int, int]
) -> tuple[Node, ...]:
    members: dict[int, list[int]] = {number: [] for number in sorted({*numbers, *(core.node for core in cores)})}
    for core in cores:
        members[core.node].append(core.number)
    if len(members) == 1:
        (number,) = members
        return (Node(number, tuple(members[number]), memory.total_bytes, memory.available_bytes, ()),)
    return tuple(Node(number, tuple(own), 0, free_bytes.get(number), ()) for number, own in members.items())


def _system_records() -> bytes:
    if sys.platform != "win32":
        return b""
    call = ctypes.WinDLL("kernel32", use_last_error=True).GetLogicalProcessorInformationEx
    size = ctypes.c_uint32(0)
    call(ALL_RELATIONSHIPS, None, ctypes.byref(size))  # fails, and returns the size
    buffer = ctypes.create_string_buffer(max(1, size.value))
    return buffer.raw[: size.value] if call(ALL_RELATIONSHIPS, buffer, ctypes.byref(size)) else b""


def _free_bytes(numbers: Collection[int]) -> dict[int, int]:
    if sys.platform != "win32":
        return {}
    call = ctypes.WinDLL("kernel32", use_last_error=True).GetNumaAvailableMemoryNodeEx
    free, free_bytes = ctypes.c_uint64(0), {}
    for number in numbers:
        if call(ctypes.c_uint16(number), ctypes.byref(free)):
            free_bytes[number] = free.value
    return free_bytes
