"""Folders for files that targets write and read: in memory where the system has such a place, as they are many."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

IN_MEMORY = Path("/dev/shm")


def scratch() -> Path:
    """A new folder, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="edgeinfer-fuzz-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
