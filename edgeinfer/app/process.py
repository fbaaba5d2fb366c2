"""What the operating system says about this process."""

from __future__ import annotations

import sys
from pathlib import Path


def peak_rss_bytes() -> int | None:
    """The most memory this process has held, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    if sys.platform == "linux":
        # what getrusage tells begins with the size of whoever started this process
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.split()[0]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, the others KiB
