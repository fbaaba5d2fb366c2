"""Memory: the total, what is available without swapping, and how much of it this process may take.

In: the root of a machine. Out: bytes, in total and per NUMA node. Uses the system's own estimate, reduced by the nodes
the process may use and by its container's limits. Swap and reserved huge pages are not counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.scheduling.machine.topology.linux_files import allowed_nodes, numbered, read_memory_limits, text_of

_LINE = re.compile(r"^(?:Node \d+ )?(\w+(?:\(\w+\))?): +(\d{1,15}) kB$", re.MULTILINE)
_DROPPABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Total bytes, and those available without swapping; 0 if unknown."""

    total_bytes: int
    available_bytes: int

    def within(self, total_bytes: int, available_bytes: int) -> MachineMemory:
        """At most a limit and what is left of it; the limit alone if nothing else is known."""
        if not self.total_bytes:
            return MachineMemory(total_bytes, max(0, available_bytes))
        total, available = min(self.total_bytes, total_bytes), min(self.available_bytes, available_bytes)
        return MachineMemory(total, max(0, min(total, available)))


def read_memory(root: Path) -> MachineMemory:
    """The memory this process may take."""
    fields = _fields(text_of(root / "proc/meminfo"))
    memory = MachineMemory(fields.get("MemTotal", 0), fields.get("MemAvailable", _droppable_bytes(fields)))
    nodes = read_node_memory(root).values()
    total_bytes = sum(node.total_bytes for node in nodes)
    if total_bytes and (not memory.total_bytes or any(not node.total_bytes for node in nodes)):
        memory = memory.within(total_bytes, sum(node.available_bytes for node in nodes))
    for group in read_memory_limits(root):
        memory = memory.within(group.limit_bytes, group.limit_bytes - group.used_bytes)
    return memory


def read_node_memory(root: Path) -> dict[int, MachineMemory]:
    """The memory of each NUMA node by number, increasing; without the nodes that this process may not take memory from.

    The system has no estimate per node: memory that is free or holds pages of files counts as available.
    """
    folder = root / "sys/devices/system/node"
    numbers = numbered(folder, "node")
    allowed = set(allowed_nodes(root)).intersection(numbers) or set(numbers)
    nodes = {}
    for number in numbers:
        fields = _fields(text_of(folder / f"node{number}/meminfo")) if number in allowed else {}
        total_bytes = fields.get("MemTotal", 0)
        nodes[number] = MachineMemory(total_bytes, min(total_bytes, _droppable_bytes(fields)))
    return nodes


def _fields(text: str) -> dict[str, int]:
    """Bytes by name, from lines "MemFree: 12 kB" and "Node 0 MemFree: 12 kB"."""
    return {name: int(kilobytes) << 10 for name, kilobytes in _LINE.findall(text)}


def _droppable_bytes(fields: dict[str, int]) -> int:
    return sum(fields.get(name, 0) for name in _DROPPABLE)
