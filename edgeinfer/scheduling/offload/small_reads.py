"""What small reads take of a disk's time when many are under way, and when it is better to read more at once.

In: the disk's rates. Out: seconds of a read and of a byte, how many reads should be under way, gaps that are worth
reading along. Knows nothing of what is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.scheduling.machine.profile import Disk

SMALL_BYTES, LARGE_BYTES = 4096, 256 << 10
"""A read of a neuron or two, and one that takes as long as its bytes do."""
PAGE_BYTES, READ_BYTES = 4096, 256 << 10
"""What reads are multiples of, and the most that one of neurons has."""
SMALL_READERS = 16
"""Small reads under way at a time, at least: their threads sleep in the system, and cost next to nothing."""
USUAL_READ_S, USUAL_BYTE_S, USUAL_FIRST_S = 18e-6, 0.5e-9, 1e-4
"""Of an NVMe disk of which nobody measured anything: 50,000 reads of 4 KiB a second, 10,000 one by one, 2 GB/s."""


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Seconds of the disk's time that each read takes, and each byte of it, and until the first of many comes back."""

    read_s: float
    byte_s: float
    first_s: float = 0.0

    @property
    def gap_bytes(self) -> int:
        """Bytes that are read along rather than with one read more: half of what takes as long, for bytes count too.

        None that reads are cut after.
        """
        return int(min(self.read_s / self.byte_s / 2, READ_BYTES))

    def seconds(self, n_reads: float, n_bytes: float) -> float:
        """Seconds of so many reads and bytes."""
        return n_reads * self.read_s + n_bytes * self.byte_s


def read_times(disk: Disk | None, n_flying: int) -> ReadTimes:
    """Those of a disk with so many reads under way; what nobody measured of it is as usual."""
    if disk is None:
        return ReadTimes(USUAL_READ_S, USUAL_BYTE_S, USUAL_FIRST_S)
    if not disk.knows(SMALL_BYTES, LARGE_BYTES):
        return ReadTimes(USUAL_READ_S, 1 / disk.best_bytes_s, USUAL_FIRST_S)
    small, large = (size / disk.bytes_s(size, n_flying) for size in (SMALL_BYTES, LARGE_BYTES))
    byte_s = max(large - small, 0.0) / (LARGE_BYTES - SMALL_BYTES) or 1 / disk.best_bytes_s
    return ReadTimes(max(small - SMALL_BYTES * byte_s, 0.0), byte_s, SMALL_BYTES / disk.bytes_s(SMALL_BYTES, 1))
