"""What names a machine: its processor's name, and a fingerprint that changes when what was measured no longer holds.

In: the topology and what the processor says of itself. Out: text. Memory that others use, and clocks, do not count.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from edgeinfer.scheduling.machine.topology import Topology

GIB = 1 << 30


def machine_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def fingerprint_of(topology: Topology) -> str:
    """16 hex digits: processor, its cores that may be used, caches, memory to the gigabyte, container's quota."""
    cores = [(core.number, core.kind, core.node) for core in topology.cores]
    facts = (
        platform.system(),
        machine_name(),
        cores,
        topology.quota,
        topology.l3_bytes,
        round(topology.total_bytes / GIB),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
