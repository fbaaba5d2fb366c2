"""Sources that err, as disks do: reads that fail, come short, come late, or bring something else."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from edgeinfer.offload.bundle_file import DiskSource, open_source


@dataclass(slots=True)
class Faults:
    """What goes wrong, and where: `fails_at`, `flips_at` are places of the file; reads are `at_most` bytes."""

    fails_at: int | None = None
    flips_at: int | None = None
    at_most: int | None = None
    ends_at: int | None = None
    delay_s: float = 0.0
    sizes: list[int] = field(default_factory=list)

    def open(self, path: Path, direct: bool) -> FaultySource:
        return FaultySource(open_source(path, direct), self)


@dataclass(slots=True)
class FaultySource:
    """A file with faults."""

    disk: DiskSource
    faults: Faults

    @property
    def is_direct(self) -> bool:
        return self.disk.is_direct

    @property
    def file_id(self) -> tuple[int, int]:
        return self.disk.file_id

    @property
    def nbytes(self) -> int:
        return self.disk.nbytes

    @property
    def descriptor(self) -> None:
        """Reads go through here, or they would have no faults."""

    def read_into(self, memory: memoryview, offset: int) -> int:
        faults = self.faults
        wanted = memory[: faults.at_most]
        if faults.ends_at is not None:
            wanted = wanted[: max(0, faults.ends_at - offset)]
            if not len(wanted):
                return 0
        time.sleep(faults.delay_s)
        if faults.fails_at is not None and offset <= faults.fails_at < offset + len(wanted):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        count = self.disk.read_into(wanted, offset)
        faults.sizes.append(count)
        if faults.flips_at is not None and offset <= faults.flips_at < offset + count:
            wanted[faults.flips_at - offset] ^= 0x10
        return count

    def close(self) -> None:
        self.disk.close()
