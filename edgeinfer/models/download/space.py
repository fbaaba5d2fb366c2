"""Free disk space, with human-readable messages.

In: a folder and a number of bytes. Out: nothing, or DownloadFailed with the required and the free bytes. Independent of
what the bytes are for, except for the words passed in.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from edgeinfer.errors import DownloadFailed
from edgeinfer.text_values import size_text

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def require_space(folder: Path, wanted_bytes: int, what: str) -> None:
    """Check that `folder` has room for `wanted_bytes` more. Raises DownloadFailed with the numbers."""
    free_bytes = shutil.disk_usage(folder).free
    if wanted_bytes > free_bytes:
        raise disk_full(folder, wanted_bytes, what, free_bytes)


def disk_full(folder: Path, wanted_bytes: int | None, what: str, free_bytes: int | None = None) -> DownloadFailed:
    """The error for a full disk: what is required, what is free, what would help."""
    free_bytes = shutil.disk_usage(folder).free if free_bytes is None else free_bytes
    wanted = "more room" if wanted_bytes is None else f"{size_text(wanted_bytes)} ({wanted_bytes} bytes)"
    return DownloadFailed(
        f"{what} needs {wanted} in {folder}, where {size_text(free_bytes)} ({free_bytes} bytes) are free; "
        "make room there, or set EDGEINFER_HOME to a folder on a larger disk"
    )
