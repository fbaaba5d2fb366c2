"""Which CPUs share a cache of level 2 or 3, from sysfs.

In: the folder of the CPUs and their numbers. Out: a `Level` each. First-level caches are not looked at, since no
worker shares them with another; caches of these levels hold data on every machine this runs on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.scheduling.machine.topology.files import list_of, number_of, numbered, size_of


@dataclass(frozen=True, slots=True)
class Level:
    """The caches of one level: the sharers of each CPU's cache, none for a CPU without one, and the largest's size."""

    sharers: Mapping[int, tuple[int, ...]]
    n_bytes: int


def read_caches(folder: Path, cpus: Iterable[int]) -> tuple[Level, Level]:
    """The caches of level 2 and of level 3 of some CPUs, from `folder`/cpuN/cache.

    CPUs that another one named as sharers of both its caches are not read: files are what takes time on large machines.
    """
    sharers: dict[int, dict[int, tuple[int, ...]]] = {2: {}, 3: {}}
    sizes = {2: 0, 3: 0}
    for cpu in cpus:
        if cpu in sharers[2] and cpu in sharers[3]:
            continue
        caches = folder / f"cpu{cpu}/cache"
        for index in numbered(caches, "index"):
            cache = caches / f"index{index}"
            level = number_of(cache / "level")
            if level not in sharers or cpu in sharers[level]:
                continue
            group = list_of(cache / "shared_cpu_list")
            group = group if cpu in group else (cpu,)
            sizes[level] = max(sizes[level], size_of(cache / "size"))
            sharers[level] |= {sharer: group for sharer in group if sharer not in sharers[level]}
    return Level(sharers[2], sizes[2]), Level(sharers[3], sizes[3])
