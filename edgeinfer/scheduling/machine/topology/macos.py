"""Cores of a Mac, from the values of `sysctl`.

In: values by name, as `sysctl hw` prints them. Out: a `Topology`. macOS has no core numbers and no pinning to cores;
the numbers here simply count them, fastest level first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from edgeinfer.scheduling.machine.topology.counted import count_machine, system_memory
from edgeinfer.scheduling.machine.topology.machine import Core, Node, Topology
from edgeinfer.scheduling.machine.topology.memory import MachineMemory

MOST_LEVELS = 8
LEVEL_NAMES = ("physicalcpu", "logicalcpu", "l2cachesize", "cpusperl2", "l3cachesize", "cpusperl3")
Values = Mapping[str, int | str]


def read_macos() -> Topology:
    """This Mac."""
    values = read_values()
    return topology_of(values, system_memory()) if "hw.physicalcpu" in values else count_machine()


def topology_of(values: Values, memory: MachineMemory) -> Topology:
    """The machine that `values` describe: levels of cores, or a single level where the system reports none."""
    levels = [f"hw.perflevel{level}" for level in range(min(MOST_LEVELS, _number(values, "hw.nperflevels")))]
    levels = [level for level in levels if _number(values, f"{level}.physicalcpu")] or ["hw"]
    cores: list[Core] = []
    for level in levels:
        cores += _cores_of_level(values, level, cores)
    whole = Node(0, tuple(core.number for core in cores), memory.total_bytes, memory.available_bytes, ())
    return Topology(
        cores=tuple(cores),
        nodes=(whole,),
        n_installed=max(_number(values, "hw.logicalcpu"), cores[-1].cpus[-1] + 1),
        quota=None,
        smt=any(len(core.cpus) > 1 for core in cores),
        l2_bytes=max(_number(values, f"{level}.l2cachesize") for level in levels),
        l3_bytes=max(_number(values, f"{level}.l3cachesize") for level in levels),
        total_bytes=memory.total_bytes,
        available_bytes=memory.available_bytes,
    )


def _cores_of_level(values: Values, level: str, faster: list[Core]) -> list[Core]:
    """The cores of one level, numbered after the `faster` ones.

    A level below the first has efficiency cores unless its name says otherwise: some chips have two fast levels.
    """
    n_cores = max(1, _number(values, f"{level}.physicalcpu"))
    n_threads = max(1, _number(values, f"{level}.logicalcpu") // n_cores)
    first_cpu, first_l2 = (faster[-1].cpus[-1] + 1, faster[-1].l2 + 1) if faster else (0, 0)
    first_l3 = max((core.l3 for core in faster), default=-1) + 1
    name = str(values.get(f"{level}.name", "Efficiency" if faster else "Performance"))
    per_l2 = _number(values, f"{level}.cpusperl2") or n_threads
    per_l3 = _number(values, f"{level}.cpusperl3") or n_cores * n_threads
    has_l3 = _number(values, f"{level}.l3cachesize") > 0
    return [
        Core(
            cpus=tuple(range(first_cpu + cpu, first_cpu + cpu + n_threads)),
            kind="efficiency" if name == "Efficiency" else "performance",
            node=0,
            package=0,
            l2=first_l2 + cpu // per_l2,
            l3=first_l3 + cpu // per_l3 if has_l3 else -1,
            max_hz=float(_number(values, "hw.cpufrequency_max")) or None,
        )
        for cpu in range(0, n_cores * n_threads, n_threads)
    ]


def read_values() -> dict[str, int | str]:
    """The `sysctlbyname` values of every name that is needed; unknown names are left out."""
    values: dict[str, int | str] = {}
    levels = ["hw", *(f"hw.perflevel{level}" for level in range(MOST_LEVELS))]
    names = ["hw.nperflevels", "hw.cpufrequency_max", *(f"{level}.{name}" for level in levels for name in LEVEL_NAMES)]
    for name in names:
        if answer := _answer(name):
            values[name] = int.from_bytes(answer, "little")
    for level in levels[1:]:
        if answer := _answer(f"{level}.name"):
            values[f"{level}.name"] = answer.split(b"\0")[0].decode("ascii", "replace")
    return values


def _answer(name: str) -> bytes:
    """The value's bytes: an integer of 4 or 8, or a text with its final zero."""
    buffer, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    failed = ctypes.CDLL(None).sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return b"" if failed else buffer.raw[: size.value]


def _number(values: Values, name: str) -> int:
    value = values.get(name, 0)
    return value if isinstance(value, int) and value > 0 else 0
