"""What a model whose weights do not all stay in memory reads in every pass, and what passes take with it.

In: pieces of a model and their `Residency`, the disk's rates, the seconds of a pass that has all its weights. Out: a
`Kept`, and passes that wait for the disk. Reading goes on while a pass computes and between passes, so a pass takes as
long as the slower of the two. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgeinfer.scheduling.profile import Disk
from edgeinfer.scheduling.residency import Load, Residency
from edgeinfer.scheduling.spent import Spent
from edgeinfer.scheduling.step_time import PassTime


@dataclass(frozen=True, slots=True)
class Streamed:
    """What a pass over one token reads: how many requests of each size in bytes, and how many are under way at once."""

    requests: Mapping[int, float]
    n_flying: int

    @property
    def nbytes(self) -> float:
        """Bytes of all requests."""
        return sum(size * count for size, count in self.requests.items())

    def seconds(self, disk: Disk) -> float:
        """Seconds that the disk takes for them."""
        return sum(size * count / disk.bytes_s(size, self.n_flying) for size, count in self.requests.items())


@dataclass(frozen=True, slots=True)
class Kept:
    """A model of which only a part stays in memory.

    total_bytes   of all weights, as they are read
    pinned_bytes  that stay
    window_bytes  that the others pass through
    """

    residency: Residency
    total_bytes: int
    pinned_bytes: int
    window_bytes: int
    streamed: Streamed

    @property
    def held_bytes(self) -> int:
        """Memory for weights."""
        return self.pinned_bytes + self.window_bytes

    @property
    def flash_bytes(self) -> int:
        """Bytes that a pass over one token reads."""
        return round(self.streamed.nbytes)


def kept_of(loads: Sequence[Load], found: Residency) -> Kept:
    """What stays and what is read of these pieces."""
    read = {number: load for number, load in enumerate(loads) if number not in found.pinned}
    requests: dict[int, float] = {}
    for load in read.values():
        requests[load.nbytes] = requests.get(load.nbytes, 0.0) + load.uses
    largest = max((load.nbytes for load in read.values()), default=1)
    n_flying = max(1, min(found.n_readers, found.window_bytes // largest - 1))  # one piece is computed with
    total = sum(load.nbytes for load in loads)
    pinned = total - sum(load.nbytes for load in read.values())
    return Kept(found, total, pinned, found.window_bytes, Streamed(requests, n_flying))


def beside_reading(time: PassTime, disk_s: float) -> PassTime:
    """A pass whose weights arrive meanwhile: bound by the disk where that takes longer than computing."""
    return time if disk_s <= time.seconds else replace(time, spent=Spent(disk=disk_s), seconds=disk_s)
