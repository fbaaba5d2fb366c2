"""How much of a mapping is in memory, as Linux tells it.

In: an array that lies in a mapped file. Out: bytes; the test is skipped where the system does not say.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from numpy.typing import NDArray


def resident_bytes(memory: NDArray[Any]) -> int:
    """Bytes of the system's pages that an array touches and that are in memory, whoever has read them."""
    if sys.platform != "linux":
        pytest.skip("only Linux says which pages of a file are in memory")
    first, stop = memory.ctypes.data // mmap.PAGESIZE, -(-(memory.ctypes.data + memory.nbytes) // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * (stop - first))()
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    if mincore(first * mmap.PAGESIZE, (stop - first) * mmap.PAGESIZE, found):
        pytest.skip(f"this system does not say which pages are in memory: error {ctypes.get_errno()}")
    return sum(page & 1 for page in found) * mmap.PAGESIZE


def require_disk(folder: Path) -> None:
    """Skip the test where a folder lies in memory, or the system cannot have pages leave memory."""
    if sys.platform != "linux":
        pytest.skip("only Linux can be told which pages leave memory")
    folder.mkdir(parents=True, exist_ok=True)
    found = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    kind = max(found, key=lambda part: len(part.mountpoint)).fstype if found else ""
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{folder} is in memory ({kind})")
