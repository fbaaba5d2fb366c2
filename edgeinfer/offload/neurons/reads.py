"""How missing neurons of a layer are read: whole runs until they have been checked, then only pages of records.

In: where records lie, and the slots that they go to. Out: `PageReads`, shared by threads: the pages to read, the
records to copy out of them, and the progress, or which read failed and why. Neighbouring records are read together
where reading the gap between them takes less time than another read. Each thread makes one compiled call that does as
many reads as it gets (`kernels.weights.page_reads`); on systems without `pread`, and for sources that are not files,
`read_each` does the same in Python. Knows neither files nor which neurons a pass needs.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.offload.bundle import PAGE_BYTES, Bundle
from edgeinfer.offload.slot_records import READ_COLUMNS
from edgeinfer.offload.window import BundleSource

Int64s = NDArray[np.int64]
READ_BYTES = 256 << 10
"""Largest read: disks reach their best rate at this size, and each reader needs a buffer of it."""
FEWEST_NEURONS = 32
"""A layer has room for at least this many neurons: one block."""


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


class PageSource(BundleSource, Protocol):
    """A source that can also read parts of bundles."""

    def read_records(self, reads: PageReads, pages: NDArray[np.uint8]) -> None:
        """Do reads that no other thread has taken until none are left; nothing is checked.

        Places are multiples of PAGE_BYTES from the start of the data. pages: uint8[n], page aligned, with room for the
        largest read. Raises EdgeInferError.
        """
        ...


@dataclass(frozen=True, slots=True)
class LayerRuns:
    """The neurons of a layer: records of `record_bytes`, in bundles of whole records that follow each other.

    `positions`: the position of each neuron's record, int64[n_neurons]; None if it equals the neuron's number.
    """

    record_bytes: int
    n_neurons: int
    bundles: tuple[Bundle, ...]
    positions: Int64s | None = None

    @property
    def length(self) -> int:
        """Neurons in each bundle but the last."""
        return -(-self.bundles[0].nbytes // self.record_bytes)

    def laid(self, slots: Int64s, neurons: Int64s) -> tuple[Int64s, Int64s]:
        """Slots int64[n] and positions of neurons int64[n], both sorted by increasing position."""
        if self.positions is None:
            return slots, neurons
        positions = self.positions[neurons]
        order = np.argsort(positions)
        return slots[order], positions[order]


def least_bytes(layers: Sequence[LayerRuns]) -> int:
    """Least memory for neurons, when every layer holds the same share of its neurons."""
    share = max(min(1.0, FEWEST_NEURONS / layer.n_neurons) for layer in layers)
    return int(share * sum(layer.n_neurons * layer.record_bytes for layer in layers)) + 1


def run_bytes(layers: Sequence[LayerRuns]) -> int:
    """Bytes of the largest run: the memory needed to read one whole."""
    return max(bundle.padded_bytes for layer in layers for bundle in layer.bundles)


def read_bytes(layers: Sequence[LayerRuns]) -> int:
    """Bytes of the buffer of each reader of pages."""
    return max(min(READ_BYTES, run_bytes(layers)), *(_spread(layer.record_bytes) for layer in layers), PAGE_BYTES)


def page_reads(starts: Int64s, slots: Int64s, memory: NDArray[np.uint8], most_bytes: int, gap_bytes: int) -> PageReads:
    """Reads of the pages that hold the records at `starts` of the data, int64[n] in order, for int64[n] slots.

    memory: uint8[slots, record_bytes]. Gaps of up to `gap_bytes` of whole pages between records are read as well. A
    read has at most `most_bytes`, which must have room for one record.
    """
    size = memory.shape[1]
    first, stop = starts // PAGE_BYTES, (starts + size - 1) // PAGE_BYTES + 1
    is_head = np.empty(len(starts), bool)
    is_head[0] = True
    np.greater(first[1:] - stop[:-1], gap_bytes // PAGE_BYTES, out=is_head[1:])
    heads = first[np.maximum.accumulate(np.where(is_head, np.arange(len(starts)), 0))]
    parts = (first - heads) // max(1, (most_bytes - _spread(size)) // PAGE_BYTES + 1)
    is_head[1:] |= parts[1:] != parts[:-1]  # split long reads
    begin = np.flatnonzero(is_head)
    end = np.append(begin[1:], len(starts))
    from_page = first[begin]
    reads = np.stack([from_page * PAGE_BYTES, (stop[end - 1] - from_page) * PAGE_BYTES, begin, end], axis=1)
    at = starts - np.repeat(from_page * PAGE_BYTES, end - begin)
    return PageReads(reads, np.stack([at, slots], axis=1), memory)


def _spread(record_bytes: int) -> int:
    """Bytes of the most pages that one record can touch."""
    return (1 + -(-(record_bytes - 1) // PAGE_BYTES)) * PAGE_BYTES
