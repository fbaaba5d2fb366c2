"""NUMA nodes from sysfs: which cores and how much memory each has, and how far they are apart.

In: the root of a machine and the numbers of its usable cores. Out: at least one `Node`; every core belongs to exactly
one, also where nodes overlap (emulated ones) or leave a core out. Knows nothing of kinds and caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgeinfer.scheduling.machine.topology.files import list_of, parse_number, text_of
from edgeinfer.scheduling.machine.topology.machine import Node
from edgeinfer.scheduling.machine.topology.memory import MachineMemory, read_node_memory


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
