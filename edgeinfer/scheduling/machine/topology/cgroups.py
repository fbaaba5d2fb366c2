"""Limits of a process's control groups: CPU time, CPUs, memory; versions 1 and 2, alone or side by side.

In: the root of a machine. Out: the quota, the cpuset, and each memory limit from the process's own group up to the top.
Limits apply along the whole path, so each group on it is read. Limits above a container's mount cannot be seen.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgeinfer.scheduling.machine.topology.files import list_of, number_of, parse_number, text_of

NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63."""


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
