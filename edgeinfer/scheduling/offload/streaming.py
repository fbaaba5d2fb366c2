"""What a model whose weights do not all stay in memory reads in every pass, and how long its passes take.

In: pieces of a model and their `WeightPlacement`, the disk's rates, the seconds of a pass that has all its weights.
Out: a `StreamedModel`, and passes that wait for the disk. Reads continue while a pass computes and between passes, so a
pass takes as long as the slower of the two. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgeinfer.graph.op import share_read
from edgeinfer.scheduling.cost.seconds import Spent
from edgeinfer.scheduling.machine.profile import Disk
from edgeinfer.scheduling.offload.reads import (
    SMALL_READERS,
    USUAL_BYTE_S,
    RecordReads,
    StreamedRecords,
    read_times,
)
from edgeinfer.scheduling.offload.weight_placement import ExpertLoads, RecordLoads, WeightPiece, WeightPlacement
from edgeinfer.scheduling.placement.step_time import PassTime


@dataclass(frozen=True, slots=True)
class Streamed:
    """Reads of a pass.

    requests  number of requests of each size in bytes in every pass
    n_flying  requests in flight at once
    experts   of which a pass uses some, as if all were used equally; `n_held` of them are in memory
    records   of which a pass uses some; they are read while nothing else can be done
    """

    requests: Mapping[int, float]
    n_flying: int
    experts: ExpertLoads | None = None
    n_held: int = 0
    records: StreamedRecords | None = None

    @property
    def nbytes(self) -> float:
        """Bytes of a pass over one token."""
        return sum(size * count for size, count in self._all(1).items()) + self.record_reads().n_bytes

    def record_reads(self, n_tokens: int = 1) -> RecordReads:
        """Reads of records in a pass, all while it waits."""
        if self.records is None:
            return RecordReads(0.0, 0.0, 0.0)
        return self.records.reads(n_tokens)

    def seconds(self, disk: Disk | None, n_tokens: int = 1) -> float:
        """Seconds of the disk for a pass over this many tokens."""
        return self.ahead_s(disk, n_tokens) + self.record_reads(n_tokens).seconds

    def ahead_s(self, disk: Disk | None, n_tokens: int = 1) -> float:
        """Seconds of the disk (a typical one if unmeasured) for reads that overlap with computing."""
        if disk is None:
            return sum(size * count for size, count in self._all(n_tokens).items()) * USUAL_BYTE_S
        return sum(size * count / disk.bytes_s(size, self.n_flying) for size, count in self._all(n_tokens).items())

    def _all(self, n_tokens: int) -> dict[int, float]:
        found, experts = dict(self.requests), self.experts
        if experts is not None:
            share = share_read(experts.count * experts.active // experts.used, experts.active, n_tokens)
            missing = share * (experts.count - self.n_held)
            found[experts.nbytes] = found.get(experts.nbytes, 0.0) + missing
        return found


@dataclass(frozen=True, slots=True)
class StreamedModel:
    """A model of which only a part stays in memory.

    total_bytes   of all weights, as they are read
    pinned_bytes  that stay
    window_bytes  that the others pass through
    cache_bytes   for experts, which come and go
    why           this layout was chosen, if layers of the model could be read by records and whole
    """

    placement: WeightPlacement
    total_bytes: int
    pinned_bytes: int
    window_bytes: int
    cache_bytes: int
    streamed: Streamed
    why: str = ""

    @property
    def by_records(self) -> bool:
        """Whether some layers are read by records."""
        return self.streamed.records is not None

    @property
    def holds_all(self) -> bool:
        """Whether everything stays, so that no pass ever reads anything."""
        read, experts, records = self.streamed.requests, self.streamed.experts, self.streamed.records
        lacks_experts = experts is not None and self.streamed.n_held < experts.count
        return not (read or lacks_experts or (records is not None and not records.holds_all))

    @property
    def held_bytes(self) -> int:
        """Memory for weights."""
        return self.pinned_bytes + self.window_bytes + self.cache_bytes + self.placement.record_bytes

    @property
    def flash_bytes(self) -> int:
        """Bytes that a pass over one token reads."""
        return round(self.streamed.nbytes)


def streamed_model(
    loads: Mapping[int, WeightPiece],
    found: WeightPlacement,
    experts: ExpertLoads | None = None,
    records: RecordLoads | None = None,
    disk: Disk | None = None,
) -> StreamedModel:
    """What stays and what is read of these pieces, by their numbers, and of experts or records beside them."""
    read = [load for number, load in loads.items() if number not in found.pinned]
    requests: dict[int, float] = {}
    for load in read:
        requests[load.nbytes] = requests.get(load.nbytes, 0.0) + load.uses
    largest = max((load.nbytes for load in read), default=1)
    n_flying = found.n_readers if not read else max(1, min(found.n_readers, found.window_bytes // largest - 1))
    total = sum(load.nbytes for load in loads.values())
    pinned = total - sum(load.nbytes for load in read)
    expert_bytes = 0 if experts is None else experts.nbytes
    all_records = 0 if records is None else records.nbytes
    return StreamedModel(
        found,
        total + all_records + expert_bytes * (0 if experts is None else experts.count),
        pinned,
        found.window_bytes,
        expert_bytes * found.n_experts,
        Streamed(
            requests,
            n_flying,
            experts,
            found.n_experts,
            None if records is None else records.in_memory(found.record_bytes, read_times(disk, SMALL_READERS)),
        ),
    )


def beside_reading(time: PassTime, disk_s: float, waiting_s: float = 0.0) -> PassTime:
    """A pass whose weights arrive meanwhile: limited by the disk if that takes longer than computing.

    It waits `waiting_s` more for data that it cannot request in advance.
    """
    found = time if disk_s <= time.seconds else replace(time, spent=Spent(disk=disk_s), seconds=disk_s)
    if not waiting_s:
        return found
    return replace(found, spent=found.spent + Spent(disk=waiting_s), seconds=found.seconds + waiting_s)
