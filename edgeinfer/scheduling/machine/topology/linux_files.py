"""The small text files of sysfs, procfs and control groups: numbers, lists of CPUs, sizes; what a process may use.

In: a root folder, "/" or a recorded one. Out: numbers, lists, and the limits of a process's control groups: CPU time,
CPUs, memory; versions 1 and 2, alone or side by side. What cannot be read is absent. Does not know what uses it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MOST_DIGITS = 4
"""Bound on the number of a CPU or node: kernels are built for 8192 at most."""
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_SIZE = re.compile(r"(\d{1,12})([KMG]?)")
_NUMBER = re.compile(r"-?\d{1,20}")
NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63."""


def text_of(path: Path) -> str:
    """The file's text without surrounding space; "" if it cannot be read: masked, taken offline meanwhile, absent."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except (OSError, ValueError):
        return ""


def parse_number(text: str) -> int | None:
    """A decimal integer; None if the text is anything else."""
    return int(text) if _NUMBER.fullmatch(text) else None


def number_of(path: Path) -> int | None:
    """The integer in a file."""
    return parse_number(text_of(path))


def parse_list(text: str) -> tuple[int, ...]:
    """The kernel's lists of CPUs and nodes: "0-3,8" is (0, 1, 2, 3, 8). Malformed parts are left out."""
    numbers: set[int] = set()
    for part in text.split(","):
        if match := _RANGE.fullmatch(part.strip()):
            first, last = match.groups()
            numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def list_of(path: Path) -> tuple[int, ...]:
    """The list of CPUs or nodes in a file."""
    return parse_list(text_of(path))


def size_of(path: Path) -> int:
    """Bytes of a cache's size as its file states it, "32768K"; 0 if it does not."""
    match = _SIZE.fullmatch(text_of(path))
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def numbered(folder: Path, name: str) -> tuple[int, ...]:
    """The numbers n of the entries NAMEn of a folder, increasing."""
    try:
        ends = [entry.name.removeprefix(name) for entry in folder.iterdir() if entry.name.startswith(name)]
    except OSError:
        return ()
    return tuple(sorted(int(end) for end in ends if end.isdecimal() and len(end) <= MOST_DIGITS))


def allowed_cpus(root: Path) -> tuple[int, ...]:
    """The CPUs the process may run on."""
    return parse_list(_fields(text_of(root / "proc/self/status")).get("Cpus_allowed_list", ""))


def allowed_nodes(root: Path) -> tuple[int, ...]:
    """The NUMA nodes the process may take memory from."""
    return parse_list(_fields(text_of(root / "proc/self/status")).get("Mems_allowed_list", ""))


def listed_cores(root: Path) -> dict[int, tuple[str, str] | None]:
    """The online CPUs of `/proc/cpuinfo`, each with its package and core if they are listed, as on x86."""
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


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A group's limit, and the bytes it holds that cannot be dropped."""

    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy: where, which group is at its top, and its controllers (none named: version 2)."""

    point: Path
    top: PurePosixPath
    controllers: frozenset[str]


def read_quota(root: Path) -> float | None:
    """CPUs' worth of time: the smallest quota over period; None if no group has one."""
    return min((quota for folder in _folders(root, "cpu") if (quota := _quota_of(folder))), default=None)


def read_cpuset(root: Path) -> tuple[int, ...]:
    """The CPUs of the nearest group that lists any; () if none does."""
    for folder in _folders(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if cpus := list_of(folder / name):
                return cpus
    return ()


def read_memory_limits(root: Path) -> tuple[MemoryLimit, ...]:
    """Memory limits, from the process's own group up."""
    return tuple(limit for folder in _folders(root, "memory") if (limit := _memory_limit_of(folder)) is not None)


def _quota_of(folder: Path) -> float | None:
    quota, _, period = text_of(folder / "cpu.max").partition(" ")
    numbers = parse_number(quota), parse_number(period)
    if numbers == (None, None):
        numbers = number_of(folder / "cpu.cfs_quota_us"), number_of(folder / "cpu.cfs_period_us")
    quota_us, period_us = numbers
    return quota_us / period_us if quota_us and period_us and quota_us > 0 and period_us > 0 else None


def _memory_limit_of(folder: Path) -> MemoryLimit | None:
    """Pages of files that were not used lately do not count as used, because they are given back on demand."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [limit for name in names if (limit := number_of(folder / name)) is not None]
    limits = [limit for limit in limits if 0 <= limit < NO_LIMIT_BYTES]
    if not limits:
        return None
    used = number_of(folder / "memory.current")
    used = number_of(folder / "memory.usage_in_bytes") if used is None else used
    lines = [line.split() for line in text_of(folder / "memory.stat").splitlines()]
    stat = {line[0]: parse_number(line[1]) for line in lines if len(line) == 2}
    inactive = stat.get("total_inactive_file", stat.get("inactive_file"))  # version 1: with and without groups below
    return MemoryLimit(min(limits), max(0, (used or 0) - max(0, inactive or 0)))


def _folders(root: Path, controller: str) -> list[Path]:
    """The process's group in each hierarchy that has the controller, and its parent groups, up to the mount.

    In a container the mount may not contain the reported path: the mount's top is then taken as the process's group.
    """
    paths = _group_paths(root)
    folders: list[Path] = []
    for mount in _mounts(root):
        if mount.controllers and controller not in mount.controllers:
            continue
        path = paths.get(controller if mount.controllers else "", PurePosixPath("/"))
        below = path.relative_to(mount.top) if path.is_relative_to(mount.top) else PurePosixPath()
        if ".." in below.parts or not os.path.isdir(mount.point / below):
            below = PurePosixPath()
        folders += [mount.point / part for part in (below, *below.parents)]
    return folders


def _group_paths(root: Path) -> dict[str, PurePosixPath]:
    """The process's group by controller, from lines "4:cpu,cpuacct:/path"; version 2's, "0::/path", under ""."""
    paths: dict[str, PurePosixPath] = {}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            paths |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    return paths


def _mounts(root: Path) -> list[_Mount]:
    """The mounted hierarchies; if the system lists none, their usual places."""
    mounts: list[_Mount] = []
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        places, kind = before.split(), after.split()
        if len(places) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            controllers = frozenset(kind[2].split(",") if kind[0] == "cgroup" else ())
            mounts.append(_Mount(root / places[4].lstrip("/"), PurePosixPath(places[3]), controllers))
    return mounts or _usual_mounts(root / "sys/fs/cgroup")


def _usual_mounts(base: Path) -> list[_Mount]:
    top = PurePosixPath("/")
    return [
        _Mount(base, top, frozenset()),
        _Mount(base / "unified", top, frozenset()),
        *(_Mount(base / name, top, frozenset({name})) for name in ("cpu", "cpuset", "memory")),
    ]
