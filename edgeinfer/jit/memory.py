"""Aligned memory for panels, buffers and KV pages.

In: shapes. Out: zeroed NumPy arrays on 64-byte boundaries. Large ones come straight from the operating system, which
provides pages only when they are touched, as huge pages if it supports them. Freed with the last reference.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 64
HUGE = 2 << 20
PAGE_BYTES = 4096
M_ARENA_MAX = -8  # of glibc's malloc.h
LINE_BYTES, LINES_PER_ROUND = 64, 4
"""Bytes of a cache line, and lines per loop of `read_memory` in each stream."""
RETURNS = {"linux": "MADV_DONTNEED", "darwin": "MADV_FREE"}
"""Advice that tells the system that pages are free: Linux takes them at once, macOS when it needs memory."""


def address(array: NDArray[np.generic]) -> int:
    """Address of an array's first element."""
    return int(array.ctypes.data)


def aligned(shape: tuple[int, ...], dtype: DTypeLike, *, huge: bool = True) -> NDArray[Any]:
    """Zeros of any dtype, aligned to 64 bytes. `huge`: on huge pages if the array is large."""
    kind = np.dtype(dtype)
    n_bytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if n_bytes >= HUGE:
        return _mapped(n_bytes, huge).view(kind).reshape(shape)
    raw = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + n_bytes].view(kind).reshape(shape)


def paged(*shape: int) -> NDArray[np.uint8]:
    """Bytes aligned to a page, as direct reads require; on huge pages if there are many."""
    n_bytes = int(np.prod(shape, dtype=np.int64))
    raw = aligned((n_bytes + PAGE_BYTES,), np.uint8)
    start = -raw.ctypes.data % PAGE_BYTES
    found: NDArray[np.uint8] = raw[start : start + n_bytes].reshape(shape)
    return found


def give_back(memory: NDArray[np.uint8]) -> None:
    """Give the pages that lie wholly in `memory` back to the system; their contents are lost, and may be written again.

    Does nothing on systems without such a call, such as Windows: the pages stay until the array is freed.
    """
    advice = vars(mmap).get(RETURNS.get(sys.platform, ""))
    start = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE  # 16 KiB on some machines, more than bundles have
    n_bytes = (memory.ctypes.data + memory.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if advice is None or n_bytes <= 0:
        return
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise(start, n_bytes, advice)  # advice that the system rejects changes nothing


def trim_heap() -> None:
    """Make the C library return freed memory: glibc keeps pieces of up to 32 MB, for each thread apart."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return
    trim(0)


def keep_one_arena() -> None:
    """Make the C library allocate from one arena: glibc has one a thread, and what is free in each adds up."""
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    except (AttributeError, OSError, TypeError):  # another C library
        return


def _mapped(n_bytes: int, huge: bool) -> NDArray[np.uint8]:
    """Anonymous private memory; both its length and its alignment are multiples of a huge page."""
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
