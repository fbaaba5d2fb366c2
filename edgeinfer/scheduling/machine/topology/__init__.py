"""The machine as needed for placing work: its cores and their kinds, caches, NUMA nodes, and available memory.

In: the operating system's view. Out: a `Topology`, restricted to what this process may use: its affinity and the
cpuset, CPU quota and memory limit of its container. Measures nothing; speeds are not known here.
"""

from edgeinfer.scheduling.machine.topology.machine import Core, CoreKind, Node, Topology
from edgeinfer.scheduling.machine.topology.reading import available_bytes, machine_memory, read_topology, usable_cores

__all__ = ["Core", "CoreKind", "Node", "Topology", "available_bytes", "machine_memory", "read_topology", "usable_cores"]
