"""The records that Windows' `GetLogicalProcessorInformationEx` fills a buffer with.

In: bytes in the 64-bit layout of winnt.h, a sequence of SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX. Out: cores, nodes,
packages and caches as sets of CPU numbers. Windows numbers processors within groups of at most 64: a CPU's number here
is 64 times its group plus its bit. Makes no system calls, so it runs anywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

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
