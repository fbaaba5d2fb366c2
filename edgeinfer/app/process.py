"""What the operating system says about this process."""

from __future__ import annotations

import sys


def peak_rss_bytes() -> int | None:
    """The most memory this process has held, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, the others KiB
