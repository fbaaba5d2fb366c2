"""Aligned memory for panels, buffers and KV pages.

In: shapes. Out: zeroed NumPy arrays on 64-byte boundaries; large ones straight from the operating system, which gives
pages only when they are touched, on huge pages where it offers them. Freed when the last reference goes.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 64
HUGE = 2 << 20
PAGE_BYTES = 4096


def aligned(shape: tuple[int, ...], dtype: DTypeLike, *, huge: bool = True) -> NDArray[Any]:
    """Zeros of any dtype whose first element lies on a 64-byte boundary. `huge`: on huge pages, where it is large."""
    kind = np.dtype(dtype)
    n_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if n_bytes >= HUGE:
        return _mapped(n_bytes, huge).view(kind).reshape(shape)
    raw = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + n_bytes].view(kind).reshape(shape)


def paged(*shape: int) -> NDArray[np.uint8]:
    """Bytes that begin at a page, as direct reads want them; on huge pages where there are many."""
    n_bytes = int(np.prod(shape, dtype=np.int64))
    raw = aligned((n_bytes + PAGE_BYTES,), np.uint8)
    start = -raw.ctypes.data % PAGE_BYTES
    found: NDArray[np.uint8] = raw[start : start + n_bytes].reshape(shape)
    return found


def _mapped(n_bytes: int, huge: bool) -> NDArray[np.uint8]:
    """Anonymous private memory, a huge-page multiple long and aligned to one."""
    size = n_bytes + HUGE
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:  # shared memory, mmap's default, would get no huge pages
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    start = -raw.ctypes.data % HUGE
    return raw[start : start + n_bytes]
