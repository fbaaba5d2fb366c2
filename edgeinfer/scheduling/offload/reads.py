"""What small reads cost with many in flight, and the reads of records of which a pass needs some.

In: the disk's rates. Out: seconds per read and per byte, how many reads should be in flight, and gaps that are worth
reading. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edgeinfer.scheduling.machine.profile import Disk

SMALL_BYTES, LARGE_BYTES = 4096, 256 << 10
"""Size of a read of a record or two, and of one that takes as long as its bytes do."""
PAGE_BYTES, READ_BYTES = 4096, 256 << 10
"""Alignment of reads, and the largest read of records."""
SMALL_READERS = 16
"""Fewest small reads in flight at a time: their threads sleep in the system, and cost next to nothing."""
USUAL_READ_S, USUAL_BYTE_S, USUAL_FIRST_S = 18e-6, 0.5e-9, 1e-4
"""Assumed for an unmeasured NVMe disk: 50,000 reads of 4 KiB per second, 10,000 one by one, 2 GB/s."""


@dataclass(frozen=True, slots=True)
class ReadTimes:
    """Disk time per read and per byte, and the latency until the first of many reads returns."""

    read_s: float
    byte_s: float
    first_s: float = 0.0

    @property
    def gap_bytes(self) -> int:
        """Largest gap that is read rather than skipped: half of what takes as long as a read, because bytes count too.

        At most the size at which reads are cut.
        """
        return int(min(self.read_s / self.byte_s / 2, READ_BYTES))

    def seconds(self, n_reads: float, n_bytes: float) -> float:
        """Seconds of this many reads and bytes."""
        return n_reads * self.read_s + n_bytes * self.byte_s


def read_times(disk: Disk | None, n_flying: int) -> ReadTimes:
    """Costs on a disk with this many reads in flight; anything unmeasured has the assumed value."""
    if disk is None:
        return ReadTimes(USUAL_READ_S, USUAL_BYTE_S, USUAL_FIRST_S)
    if not disk.knows(SMALL_BYTES, LARGE_BYTES):
        return ReadTimes(USUAL_READ_S, 1 / disk.best_bytes_s, USUAL_FIRST_S)
    small, large = (size / disk.bytes_s(size, n_flying) for size in (SMALL_BYTES, LARGE_BYTES))
    byte_s = max(large - small, 0.0) / (LARGE_BYTES - SMALL_BYTES) or 1 / disk.best_bytes_s
    return ReadTimes(max(small - SMALL_BYTES * byte_s, 0.0), byte_s, SMALL_BYTES / disk.bytes_s(SMALL_BYTES, 1))


@dataclass(frozen=True, slots=True)
class RecordReads:
    """Reads of records in a pass: their number, their bytes, the disk's seconds, and the seconds around them."""

    n_reads: float
    n_bytes: float
    seconds: float


class StreamedRecords(Protocol):
    """Records of which a pass reads those that it uses and that are not in memory, while nothing else can be done.

    holds_all: whether all of them fit in memory.
    """

    @property
    def holds_all(self) -> bool: ...

    def reads(self, n_tokens: int = 1) -> RecordReads:
        """The reads of a pass."""
        ...
