"""A machine of which only counts are known: cores, threads, memory.

In: counts from psutil. Out: a `Topology` of equal cores in one node. For systems that report no more.
"""

from __future__ import annotations

import psutil

from edgeinfer.scheduling.machine.topology.machine import Core, Node, Topology
from edgeinfer.scheduling.machine.topology.memory import MachineMemory


def count_machine() -> Topology:
    """This machine from its counts."""
    n_threads = psutil.cpu_count() or 1
    return topology_of(psutil.cpu_count(logical=False) or n_threads, n_threads, system_memory())


def system_memory() -> MachineMemory:
    """The memory of this machine, and how much of it is available without swapping."""
    memory = psutil.virtual_memory()
    return MachineMemory(int(memory.total), int(memory.available))


def topology_of(n_cores: int, n_threads: int, memory: MachineMemory) -> Topology:
    """Equal cores whose hardware threads are numbered consecutively."""
    per_core = max(1, n_threads // max(1, n_cores))
    cores = tuple(
        Core(
            cpus=tuple(range(core * per_core, (core + 1) * per_core)),
            kind="performance",
            node=0,
            package=0,
            l2=core,
            l3=-1,
            max_hz=None,
        )
        for core in range(max(1, n_cores))
    )
    node = Node(0, tuple(core.number for core in cores), memory.total_bytes, memory.available_bytes, ())
    return Topology(
        cores=cores,
        nodes=(node,),
        n_installed=n_threads,
        quota=None,
        smt=per_core > 1,
        l2_bytes=0,
        l3_bytes=0,
        total_bytes=memory.total_bytes,
        available_bytes=memory.available_bytes,
    )
