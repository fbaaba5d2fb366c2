"""Facts about this process from the operating system."""

from __future__ import annotations

import sys
from pathlib import Path


def peak_rss_bytes() -> int | None:
    """Peak memory of this process in bytes; None if the system does not report it."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    if sys.platform == "linux":
        # getrusage starts from the size of the parent process
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.split()[0]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, the others KiB
