"""What `/proc` tells a process of itself and of the processors: allowed CPUs and nodes, threads of a core.

In: the root of a machine. Out: lists of numbers, () where nothing is told. Knows nothing of sysfs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgeinfer.scheduling.machine.topology.files import parse_list, parse_number, text_of


def allowed_cpus(root: Path) -> tuple[int, ...]:
    """The CPUs the process may run on."""
    return parse_list(_fields(text_of(root / "proc/self/status")).get("Cpus_allowed_list", ""))


def allowed_nodes(root: Path) -> tuple[int, ...]:
    """The NUMA nodes the process may take memory from."""
    return parse_list(_fields(text_of(root / "proc/self/status")).get("Mems_allowed_list", ""))


def listed_cores(root: Path) -> dict[int, tuple[str, str] | None]:
    """The online CPUs of `/proc/cpuinfo`, each with its package and core where they are told, as they are on x86."""
    cores: dict[int, tuple[str, str] | None] = {}
    for fields in _paragraphs(root):
        if (cpu := parse_number(fields.get("processor", ""))) is not None and cpu >= 0:
            package, core = fields.get("physical id"), fields.get("core id")
            cores[cpu] = None if package is None or core is None else (package, core)
    return cores


def _paragraphs(root: Path) -> Iterator[dict[str, str]]:
    for paragraph in text_of(root / "proc/cpuinfo").split("\n\n"):
        yield _fields(paragraph)


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}
