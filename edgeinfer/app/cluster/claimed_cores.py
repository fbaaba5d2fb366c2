"""Cores of one computer that several replicas share out: no two take the same.

In: how many CPUs Ray gave a replica. Out: the cores that it computes on, held by lock files until it ends, however it
ends. Cores of one NUMA node are taken together, so that a replica reads its weights from its own memory.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from edgeinfer.engine.running import running_folder
from edgeinfer.file_lock import FileLock, LockHeld, is_held
from edgeinfer.private_files import readable_folder
from edgeinfer.scheduling.machine.topology import Topology


def share_of(topology: Topology, n_cpus: float) -> int | None:
    """How many cores a replica with this many of the computer's CPUs computes on; None: it has the whole computer."""
    n_cores = len(topology.workers())
    n_usable = sum(len(core.cpus) for core in topology.cores) or n_cores
    share = max(1, round(n_cores * n_cpus / n_usable))
    return None if share >= n_cores else share


class ClaimedCores:
    """Cores that this process holds. `cores` are fewer than wanted, or none, if others hold the rest."""

    def __init__(self, topology: Topology, n_wanted: int, folder: Path | None = None) -> None:
        self._held = ExitStack()
        self._folder = folder or running_folder()
        self.cores = self._claimed(topology, n_wanted)

    def close(self) -> None:
        """Let others take the cores."""
        self._held.close()
        self.cores = ()

    def _claimed(self, topology: Topology, n_wanted: int) -> tuple[int, ...]:
        readable_folder(self._folder)
        free: dict[int, list[int]] = {}
        usable = set(topology.workers())
        for core in topology.cores:
            if core.number in usable and not is_held(self._path(core.number)):
                free.setdefault(core.node, []).append(core.number)
        found: list[int] = []
        for cores in _nodes_in_order(list(free.values()), n_wanted):
            for core_number in cores:
                if len(found) < n_wanted and self._take(core_number):
                    found.append(core_number)
        return tuple(sorted(found))

    def _path(self, core: int) -> Path:
        return self._folder / f"{platform.node()}-core-{core}.lock"

    def _take(self, core: int) -> bool:
        try:
            self._held.enter_context(FileLock(self._path(core), f"core {core}", "computing on"))
        except LockHeld:  # another replica was faster
            return False
        return True


def _nodes_in_order(nodes: Sequence[list[int]], n_wanted: int) -> list[list[int]]:
    """The smallest node that has enough cores comes first, else the largest ones."""
    enough = sorted((cores for cores in nodes if len(cores) >= n_wanted), key=len)
    return [*enough, *sorted((cores for cores in nodes if len(cores) < n_wanted), key=len, reverse=True)]
