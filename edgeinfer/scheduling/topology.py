"""The machine as far as placing work needs it: usable cores and the memory that is really free.

In: the operating system's view (Linux: sysfs and cgroups; elsewhere psutil). Out: core numbers, bytes. A container's
CPU quota and memory limit count, one hardware thread per core is used. Core classes and NUMA nodes are not told apart.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import psutil

SYSFS = Path("/sys")
NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63."""


def usable_cores(sysfs: Path = SYSFS) -> tuple[int, ...]:
    """Logical CPU numbers, one per physical core this process may run on, at most the container's quota."""
    if sys.platform != "linux":
        return tuple(range(psutil.cpu_count(logical=False) or psutil.cpu_count() or 1))
    distinct = one_per_core(sorted(os.sched_getaffinity(0)), sysfs)
    return tuple(distinct[: core_quota(len(distinct), sysfs)])


def one_per_core(allowed: list[int], sysfs: Path = SYSFS) -> list[int]:
    """The first hardware thread of each core among `allowed`."""
    kept: list[int] = []
    seen: set[str] = set()
    for cpu in allowed:
        path = sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings = path.read_text().strip() if path.exists() else str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            kept.append(cpu)
    return kept


def core_quota(n_cores: int, sysfs: Path = SYSFS) -> int:
    """Cores that the cgroup's CPU quota allows, from 1 to `n_cores`."""
    v2, v1 = sysfs / "fs/cgroup/cpu.max", sysfs / "fs/cgroup/cpu/cpu.cfs_quota_us"
    if v2.exists():
        quota, period = v2.read_text().split()
    elif v1.exists():
        quota, period = v1.read_text().strip(), v1.with_name("cpu.cfs_period_us").read_text().strip()
    else:
        return n_cores
    if quota in {"max", "-1"}:
        return n_cores
    return max(1, min(n_cores, math.ceil(int(quota) / int(period))))


def available_bytes(sysfs: Path = SYSFS) -> int:
    """Memory that can be taken without swapping: what the system has free, within the cgroup's limit."""
    free = int(psutil.virtual_memory().available)
    for limit_name, used_name in (
        ("fs/cgroup/memory.max", "fs/cgroup/memory.current"),
        ("fs/cgroup/memory/memory.limit_in_bytes", "fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = sysfs / limit_name, sysfs / used_name
        if limit.exists() and used.exists():
            text = limit.read_text().strip()
            if text != "max" and int(text) < NO_LIMIT_BYTES:
                return max(0, min(free, int(text) - int(used.read_text())))
    return free
