"""Which logical CPUs this process may run on.

In: the operating system's answer. Out: CPU numbers, or an error that lists them. Knows no cores, caches or quotas.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from edgeinfer.errors import BadSetting


def allowed_cpus() -> tuple[int, ...]:
    """Logical CPUs that the operating system lets this process run on."""
    if sys.platform == "linux":
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def require_cpus(cpus: Iterable[int]) -> None:
    """Raise BadSetting, listing the usable CPUs, if `cpus` is empty or contains one this process may not use."""
    wanted, allowed = set(cpus), allowed_cpus()
    there_are = f"this process may use {', '.join(map(str, allowed))}"
    if not wanted:
        raise BadSetting(f"no core was given; {there_are}")
    if missing := sorted(wanted - set(allowed)):
        raise BadSetting(f"core {missing[0]} cannot be used here; {there_are}")
