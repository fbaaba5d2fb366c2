"""Reads the machine this process runs on, or one recorded below a folder.

In: a root folder whose `sys` and `proc` are Linux's; "/" is this machine, whatever its system. Out: a `Topology`. Knows
which reader belongs to which system, but nothing of what they read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from edgeinfer.scheduling.machine.topology.linux import read_linux
from edgeinfer.scheduling.machine.topology.machine import Topology
from edgeinfer.scheduling.machine.topology.memory import MachineMemory, read_memory

THIS_MACHINE = Path("/")


def read_topology(root: Path = THIS_MACHINE, affinity: Iterable[int] | None = None) -> Topology:
    """The machine below `root`, restricted to what this process may use.

    `affinity`: the CPUs allowed; by default the calling thread's, or those in a recorded `proc/self/status`.
    """
    if root != THIS_MACHINE or sys.platform == "linux":
        if affinity is None and root == THIS_MACHINE and sys.platform == "linux":
            affinity = os.sched_getaffinity(0)
        return read_linux(root, affinity)
    # psutil, which these load, takes longer than reading a Linux machine
    if sys.platform == "darwin":
        from edgeinfer.scheduling.machine.topology.macos import read_macos

        return read_macos()
    if sys.platform == "win32":
        from edgeinfer.scheduling.machine.topology.windows import read_windows

        return read_windows()
    from edgeinfer.scheduling.machine.topology.counted import count_machine

    return count_machine()


def usable_cores(root: Path = THIS_MACHINE) -> tuple[int, ...]:
    """The CPUs to compute on before anything is measured: one per physical core, at most the container's quota."""
    return read_topology(root).workers()


def available_bytes(root: Path = THIS_MACHINE) -> int:
    """Memory available without swapping, within the container's limit."""
    return machine_memory(root).available_bytes


def machine_memory(root: Path = THIS_MACHINE) -> MachineMemory:
    """Memory in total and available without swapping, within the container's limit."""
    if root != THIS_MACHINE or sys.platform == "linux":
        return read_memory(root)
    from edgeinfer.scheduling.machine.topology.counted import system_memory

    return system_memory()
