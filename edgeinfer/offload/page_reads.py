"""Many reads of pages, shared by threads: the pages to read, the records to copy out of them, and the progress.

In: places in a file, slots of memory. Out: records in their slots, or which read failed and why. Each thread makes one
compiled call that does as many reads as it gets (`kernels.weights.page_reads`); on systems without `pread`, and for
sources that are not files, `read_each` does the same in Python. Knows neither files nor what the records mean.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.offload.slot_records import READ_COLUMNS

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """A failed read: its place, the bytes it asked for, and the system's error number, None at the end of the file."""

    offset: int
    n_bytes: int
    n_read: int
    error: int | None


class PageReads:
    """Reads that threads take one by one. Keep the object until all of them have finished."""

    def __init__(self, reads: Int64s, records: Int64s, memory: NDArray[np.uint8]) -> None:
        """reads: int64[n, 4], first byte, bytes, first and end of records.

        records: int64[m, 2], byte in the read, slot. memory: uint8[slots, record_bytes].
        """
        self.reads = np.zeros((len(reads), READ_COLUMNS), np.int64)
        self.reads[:, :4] = reads
        self.records, self.memory = np.ascontiguousarray(records), memory
        self.state = np.zeros(2, np.int64)
        self._lock = threading.Lock()
        arrays: tuple[NDArray[Any], ...] = (self.reads, self.records, memory, self.state)
        reads_at, records_at, memory_at, state_at = (array.ctypes.data for array in arrays)
        self.arguments = reads_at, len(reads), records_at, memory.shape[1], memory_at, state_at
        """Arguments of the compiled function between those about the file and the pages."""

    def take(self) -> int | None:
        """Take the next read; None if none is left or one failed."""
        with self._lock:
            number = int(self.state[0])
            if self.state[1] or number >= len(self.reads):
                return None
            self.state[0] += 1
            return number

    def stop(self) -> None:
        """Begin no more reads."""
        self.state[0] = len(self.reads)

    def copy(self, number: int, pages: NDArray[np.uint8]) -> None:
        """Copy the records of a finished read from its pages to their slots."""
        size = self.memory.shape[1]
        first, stop = self.reads[number, 2:4].tolist()
        for start, slot in self.records[first:stop].tolist():
            self.memory[slot] = pages[start : start + size]

    @property
    def failure(self) -> ReadFailure | None:
        """The read that failed in compiled code, if one did."""
        number = int(self.state[1]) - 1
        if number < 0:
            return None
        offset, n_bytes, _, _, result = self.reads[number].tolist()
        return ReadFailure(offset, n_bytes, max(0, result), -result if result < 0 else None)


def read_each(reads: PageReads, pages: NDArray[np.uint8], read_pages: Callable[[int, memoryview], None]) -> None:
    """Do reads until none are left: the twin of the compiled function. Raises what `read_pages` raises."""
    while (number := reads.take()) is not None:
        offset, n_bytes = reads.reads[number, :2].tolist()
        try:
            read_pages(offset, pages.data[:n_bytes])
        except BaseException:
            reads.stop()
            raise
        reads.copy(number, pages)


@dataclass(frozen=True, slots=True)
class SystemReads:
    """Addresses of the system's `pread` and of the function that returns the address of a thread's error number."""

    pread: int
    error_at: int


class CompiledReads:
    """The compiled function, bound to the system's functions."""

    def __init__(self, function: Callable[..., int], system: SystemReads) -> None:
        self._function, self._system = function, (system.pread, system.error_at)

    def __call__(self, reads: PageReads, pages: NDArray[np.uint8], descriptor: int, base: int, granule: int) -> None:
        """Do reads until none are left or one fails: see `PageReads.failure`.

        pages: uint8[n], page aligned, with room for the largest read. The data begins at byte `base` of the file. A
        short read is resumed at a multiple of `granule`.
        """
        self._function(*self._system, descriptor, base, granule, *reads.arguments, pages.ctypes.data)


def system_reads() -> SystemReads | None:
    """The functions of this system's C library; None if it has none with 64-bit offsets."""
    if sys.platform == "win32" or ctypes.sizeof(ctypes.c_void_p) < 8:
        return None
    library = ctypes.CDLL(None)
    for name in ("__errno_location", "__error"):
        try:
            found = [ctypes.cast(getattr(library, each), ctypes.c_void_p).value for each in ("pread", name)]
        except AttributeError:
            continue
        if found[0] is not None and found[1] is not None:
            return SystemReads(found[0], found[1])
    return None
