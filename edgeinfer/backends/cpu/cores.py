"""Which cores this process may use, one hardware thread per core, within a container's CPU quota.

In: the operating system's view. Out: core numbers in the order workers take them. Speeds and NUMA nodes are the
scheduler's business, not this module's.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import psutil


def usable_cores() -> tuple[int, ...]:
    """Logical CPU numbers, one per physical core the process may run on, at most the container's quota."""
    if sys.platform == "linux":
        allowed = sorted(os.sched_getaffinity(0))
        distinct = _one_per_core(allowed)
        return tuple(distinct[: _quota(len(distinct))])
    return tuple(range(psutil.cpu_count(logical=False) or psutil.cpu_count() or 1))


def _one_per_core(allowed: list[int]) -> list[int]:
    """The first hardware thread of each core."""
    kept, seen = [], set()
    for cpu in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings = path.read_text().strip() if path.exists() else str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            kept.append(cpu)
    return kept


def _quota(n_cores: int) -> int:
    """Cores that a cgroup's CPU quota allows, at least 1."""
    v2, v1 = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    if v2.exists():
        quota, period = v2.read_text().split()
    elif v1.exists():
        quota, period = v1.read_text().strip(), v1.with_name("cpu.cfs_period_us").read_text().strip()
    else:
        return n_cores
    if quota in {"max", "-1"}:
        return n_cores
    return max(1, min(n_cores, math.ceil(int(quota) / int(period))))
