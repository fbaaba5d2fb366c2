"""Cores of a Windows machine.

In: the buffer that `GetLogicalProcessorInformationEx` fills, in the 64-bit layout of winnt.h, a sequence of
SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX; the process's affinity, free memory per node. Out: a `Topology`. Windows
numbers processors within groups of at most 64: a CPU's number here is 64 times its group plus its bit. Affinity is
respected on machines with one processor group: a process on several has no mask. Clocks, limits of job objects and
total memory per node are not read. `parse_records` makes no system calls, so it runs anywhere.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import psutil

from edgeinfer.scheduling.machine.topology.counted import count_machine, system_memory
from edgeinfer.scheduling.machine.topology.machine import Core, CoreKind, Node, Topology, group_numbers, with_islands
from edgeinfer.scheduling.machine.topology.memory import MachineMemory

GROUP_SIZE = 64
CORE, NODE, CACHE, PACKAGE, NODE_OF_GROUPS = 0, 1, 2, 3, 6
"""LOGICAL_PROCESSOR_RELATIONSHIP."""
INSTRUCTION = 1
"""PROCESSOR_CACHE_TYPE."""
HEADER = struct.Struct("<II")
"""Relationship, size of the record."""
PROCESSOR = struct.Struct("<xB20xH")
"""PROCESSOR_RELATIONSHIP up to its masks: efficiency class, number of masks."""
NUMA_NODE = struct.Struct("<I18xH")
"""NUMA_NODE_RELATIONSHIP: node, number of masks; older versions have 0, which means one."""
CACHE_HEAD = struct.Struct("<BxxxII18xH")
"""CACHE_RELATIONSHIP: level, bytes, type, number of masks; 0 means one."""
MASK = struct.Struct("<QHxxxxxx")
"""GROUP_AFFINITY: mask, group."""

Cpus = tuple[int, ...]
ALL_RELATIONSHIPS = 0xFFFF


@dataclass(frozen=True, slots=True)
class CoreRecord:
    """A core's hardware threads, and its efficiency class: a higher class is faster and less efficient."""

    cpus: Cpus
    efficiency_class: int


@dataclass(frozen=True, slots=True)
class CacheRecord:
    """A data cache, and the CPUs that share it."""

    cpus: Cpus
    level: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Records:
    """The contents of one buffer."""

    cores: tuple[CoreRecord, ...]
    caches: tuple[CacheRecord, ...]
    packages: tuple[Cpus, ...]
    nodes: tuple[tuple[int, Cpus], ...]


def parse_records(buffer: bytes) -> Records:
    """The records of a buffer, up to the first that does not fit in it; unneeded relationships are skipped."""
    cores: list[CoreRecord] = []
    caches: list[CacheRecord] = []
    packages: list[Cpus] = []
    nodes: list[tuple[int, Cpus]] = []
    for relationship, body in _bodies(buffer):
        if relationship in (CORE, PACKAGE) and len(body) >= PROCESSOR.size:
            efficiency_class, n_masks = PROCESSOR.unpack_from(body)
            cpus = _cpus(body[PROCESSOR.size :], n_masks)
            if relationship == PACKAGE:
                packages.append(cpus)
            elif cpus:
                cores.append(CoreRecord(cpus, efficiency_class))
        elif relationship in (NODE, NODE_OF_GROUPS) and len(body) >= NUMA_NODE.size:
            number, n_masks = NUMA_NODE.unpack_from(body)
            nodes.append((number, _cpus(body[NUMA_NODE.size :], n_masks)))
        elif relationship == CACHE and len(body) >= CACHE_HEAD.size:
            level, n_bytes, kind, n_masks = CACHE_HEAD.unpack_from(body)
            if kind != INSTRUCTION:
                caches.append(CacheRecord(_cpus(body[CACHE_HEAD.size :], n_masks), level, n_bytes))
    cores.sort(key=lambda core: core.cpus)
    return Records(tuple(cores), tuple(caches), tuple(packages), tuple(nodes))


def _bodies(buffer: bytes) -> Iterator[tuple[int, bytes]]:
    """Each record's relationship and what follows its header."""
    start = 0
    while start + HEADER.size <= len(buffer):
        relationship, size = HEADER.unpack_from(buffer, start)
        if size < HEADER.size or start + size > len(buffer):
            return
        yield relationship, buffer[start + HEADER.size : start + size]
        start += size


def _cpus(masks: bytes, n_masks: int) -> Cpus:
    n_masks = min(max(1, n_masks), len(masks) // MASK.size)
    pairs = [MASK.unpack_from(masks, place * MASK.size) for place in range(n_masks)]
    return tuple(
        sorted(GROUP_SIZE * group + bit for mask, group in pairs for bit in range(GROUP_SIZE) if mask >> bit & 1)
    )


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
