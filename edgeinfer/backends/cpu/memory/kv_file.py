"""Memory that lies in a file, of which about so many bytes are in RAM: what was not used for longest leaves it.

In: a size, and which of the system's pages are about to be used. Out: bytes as a shared mapping. A page that has left
comes back by itself when it is touched, with the same contents; `use` has pages read together, which is faster. The
file is unlinked, so that a program that is killed leaves nothing behind, and all of its space is taken at once, so that
a full disk is found then. Only Linux can be told which pages leave memory. Knows nothing of keys and values.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.memories import kv_folder
from edgeinfer.errors import BadSetting, DeviceFailed, DoesNotFit
from edgeinfer.graph.step import Int32s
from edgeinfer.temporary import temporary_file
from edgeinfer.text_values import size_text

PAGE_BYTES = mmap.PAGESIZE
LOW_SHARE = 8
"""Once there are too many pages in memory, one in eight leaves it."""
READ_PAGES = 32
"""Pages that are read at once: the system cuts longer requests short."""
WRITE, WRITE_AND_WAIT = 2, 7
"""Flags of sync_file_range."""
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems without a disk."""
REMEDY = "set EDGEINFER_HOME to a folder on another disk, or leave --kv-ram out"
Numbers = NDArray[np.integer[Any]]
NONE: Int32s = np.zeros(0, np.int32)


class KVFile:
    """Bytes in a file. Use `close` at the end; the space is free once no array refers to `memory`."""

    def __init__(self, n_bytes: int, ram_bytes: int) -> None:
        """`ram_bytes`: what may be in memory. Raises BadSetting and DoesNotFit where there is no such file."""
        self.n_bytes = -(-n_bytes // PAGE_BYTES) * PAGE_BYTES
        self._most, self._n_in = max(1, ram_bytes // PAGE_BYTES), 0
        self._descriptor = reserved_file(self.n_bytes)
        self._mapping = mmap.mmap(self._descriptor, self.n_bytes)
        self._mapping.madvise(mmap.MADV_RANDOM)  # what lies beside a page is not read with it
        self.memory: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self._used_at = np.zeros(self.n_bytes // PAGE_BYTES, np.int64)  # 0: not in memory
        self._clock, self._lock = 0, threading.Lock()
        self._sync = ctypes.CDLL(None, use_errno=True).sync_file_range
        self._sync.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)

    @property
    def resident_bytes(self) -> int:
        """Bytes in memory, as far as `use` was told."""
        return self._n_in * PAGE_BYTES

    def use(self, pages: Numbers, ahead: Numbers = NONE, *, in_turn: bool = False) -> None:
        """Have these pages in memory, and those `ahead` too if there is room; others leave if they are too many.

        `in_turn`: all pages are used one after the other, again and again, so those used last leave first. Raises
        DeviceFailed if the disk fails.
        """
        with self._lock:
            self._clock += 1
            if len(ahead) and len(pages) + len(ahead) <= self._most * (LOW_SHARE - 1) // LOW_SHARE:
                pages = np.concatenate([pages, ahead])
            absent = np.unique(pages[self._used_at[pages] == 0])
            self._used_at[pages] = self._clock
            self._n_in += len(absent)
            if self._n_in > self._most:
                self._make_room(in_turn)
            for first, stop in _runs(absent):
                for start in range(first, stop, READ_PAGES):
                    n_bytes = min(READ_PAGES, stop - start) * PAGE_BYTES
                    self._mapping.madvise(mmap.MADV_WILLNEED, start * PAGE_BYTES, n_bytes)

    def empty(self) -> None:
        """Have nothing in memory, also of what was touched without `use`. Raises DeviceFailed if the disk fails."""
        with self._lock:
            self._release([(0, len(self._used_at))])
            self._used_at[:], self._n_in = 0, 0

    def close(self) -> None:
        """Close the file; its memory can be used as long as it is referred to. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _make_room(self, in_turn: bool) -> None:
        """Have the pages leave that are not used now, as many as it takes."""
        others = np.flatnonzero((self._used_at > 0) & (self._used_at < self._clock))
        n_leaving = min(len(others), self._n_in - self._most * (LOW_SHARE - 1) // LOW_SHARE)
        if n_leaving <= 0:
            return
        used_at = -self._used_at[others] if in_turn else self._used_at[others]
        leaving = np.sort(others[np.argpartition(used_at, n_leaving - 1)[:n_leaving]])
        self._release(list(_runs(leaving)))
        self._used_at[leaving] = 0
        self._n_in -= n_leaving

    def _release(self, runs: list[tuple[int, int]]) -> None:
        """Write runs of pages to the file where they have changed, and drop them from memory."""
        places = [(first * PAGE_BYTES, (stop - first) * PAGE_BYTES) for first, stop in runs]
        for flags in (WRITE, WRITE_AND_WAIT):
            for start, n_bytes in places:
                if self._sync(self._descriptor, start, n_bytes, flags):
                    reason = os.strerror(ctypes.get_errno())
                    raise DeviceFailed(f"keys and values cannot be written to {kv_folder()}: {reason}; {REMEDY}")
        for start, n_bytes in places:
            self._mapping.madvise(mmap.MADV_DONTNEED, start, n_bytes)
            os.posix_fadvise(self._descriptor, start, n_bytes, os.POSIX_FADV_DONTNEED)


def _runs(numbers: Numbers) -> Iterator[tuple[int, int]]:
    """First number of each run of increasing numbers, and the one after its last."""
    if not len(numbers):
        return iter(())
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate([[0], breaks + 1])]
    stops = numbers[np.concatenate([breaks, [len(numbers) - 1]])] + 1
    return zip(firsts.tolist(), stops.tolist(), strict=True)


def reserved_file(n_bytes: int) -> int:
    """The descriptor of a new unlinked file, private to this user, whose space is taken. Raises as `KVFile`."""
    folder = kv_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = temporary_file(folder / "kv")
        os.unlink(name)
    except OSError as reason:
        said = reason.strerror or reason
        raise BadSetting(f"--kv-ram cannot keep a file in {folder}: {said}; {REMEDY}") from None
    try:
        _require_disk(folder)
        if n_bytes > shutil.disk_usage(folder).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(descriptor, 0, n_bytes)
    except BaseException as reason:
        os.close(descriptor)
        if isinstance(reason, OSError):
            raise DoesNotFit(_too_large(folder, n_bytes, reason)) from None
        raise
    return descriptor


def _too_large(folder: Path, n_bytes: int, reason: OSError) -> str:
    """Why a file could not be made."""
    wanted = f"--kv-ram takes {size_text(n_bytes)} of disk space in {folder}"
    if reason.errno not in (errno.ENOSPC, errno.EDQUOT):
        return f"{wanted}: {reason.strerror or reason}; {REMEDY}"
    free = size_text(shutil.disk_usage(folder).free)
    return f"{wanted}, where {free} are free; make room there, use a smaller context (--ctx), or {REMEDY}"


def _require_disk(folder: Path) -> None:
    """Raise BadSetting for a folder in memory."""
    import psutil

    device = os.stat(folder).st_dev
    for part in psutil.disk_partitions(all=True):
        if part.fstype in IN_MEMORY and _device(part.mountpoint) == device:
            raise BadSetting(f"--kv-ram would save nothing: {folder} is in memory itself ({part.fstype}); {REMEDY}")


def _device(path: str) -> int | None:
    """The device of a folder; None if the system does not say."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return None
