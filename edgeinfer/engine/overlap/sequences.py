"""Sequences of the overlap executor: the KV partition of each, and which batches of them are in flight.

In: sequences that are created, branched and freed; batches, paths. Out: the partition of each sequence, the accelerator
while there is room, else the machine's memory, and batches placed in it; in-flight batches, and logits where they are
finished. A sequence stays in its partition until it is freed; only restoring a saved state may change it, because the
sequence then has nothing to move. A batch of several sequences is split into one per sequence, which is started,
finished, committed or cancelled. Knows neither devices nor schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.memories import KVMemory
from edgeinfer.engine.kv.kvcache import KVCache, pages_for
from edgeinfer.engine.kv.pages import Copies
from edgeinfer.engine.overlap.micro_batches import InFlightBatch, Int64s, RowStore
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.step import IDS_ONLY, Batch, Int32s, Step


class KVPartition:
    """The pages of one memory and the sequences in it."""

    def __init__(self, name: str, memory: KVMemory, n_pages: int, n_context: int) -> None:
        self.name, self.n_pages = name, n_pages
        self.cache, self._memory = KVCache(n_pages, n_context), memory

    def place(self, sequence: int, batch: Batch) -> Step:
        """Place a one-sequence batch in its pages, beside other pending ones. Raises ContextOverflow, DoesNotFit."""
        alone = replace(batch, sequences=np.full(len(batch.tokens), sequence, np.int32))
        placement = self.cache.place(alone, beside=True)
        self._apply(placement.copies)
        return placement.step

    def commit(self, sequence: int, path: Int32s) -> None:
        """Commit pending tokens of a sequence."""
        self._apply(self.cache.commit(sequence, path))

    def discard(self, sequence: int) -> None:
        """Drop the pending tokens of a sequence."""
        self.cache.truncate(sequence, self.cache.n_cached(sequence))

    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self._memory.read_pages(np.zeros(1, np.int32)).shape[1] if self.n_pages else 0

    def read(self, sequence: int) -> bytes:
        """The cached contents of a sequence."""
        pages = self.cache.pages(sequence)
        return self._memory.read_pages(pages).tobytes() if len(pages) else b""

    def fill(self, sequence: int, n_tokens: int, body: bytes | None) -> None:
        """Replace a sequence's contents by this many cached tokens: from `read`, or zeros.

        Raises ContextOverflow or DoesNotFit, and then leaves the sequence empty.
        """
        pages = self.cache.refill(sequence, n_tokens)
        if len(pages):
            shape = len(pages), self.page_bytes()
            contents: NDArray[np.uint8] = np.zeros(shape, np.uint8)
            self._memory.write_pages(pages, contents if body is None else np.frombuffer(body, np.uint8).reshape(shape))

    def _apply(self, copies: Copies) -> None:
        if len(copies.sources):
            self._memory.copy_slots(copies.sources, copies.targets)


@dataclass(frozen=True, slots=True)
class SequencePlace:
    """A sequence's KV partition, its number there, and the pages reserved for it."""

    kv_partition: KVPartition
    number: int
    n_reserved: int


class KVPartitions:
    """Assigns KV partitions. Reserves accelerator pages for the full length that a sequence may grow to.

    `n_spare` accelerator pages are never reserved: they are for branches that diverge, and for siblings in draft trees.
    """

    def __init__(self, resident: KVPartition, offloaded: KVPartition, n_context: int, n_spare: int) -> None:
        self.resident, self.offloaded, self._n_context = resident, offloaded, n_context
        self._n_spare = n_spare
        self._places: dict[int, SequencePlace] = {}
        self._next_id = 0

    @property
    def n_free_pages(self) -> int:
        return self.resident.cache.n_free_pages + self.offloaded.cache.n_free_pages

    def create(self, n_tokens: int | None = None) -> int:
        """A new empty sequence that may grow to `n_tokens`; None: to the whole context."""
        n_wanted = pages_for(self._n_context if n_tokens is None else n_tokens)
        kv_partition = self.resident if self._has_room(n_wanted) else self.offloaded
        return self._named(SequencePlace(kv_partition, kv_partition.cache.create(), n_wanted))

    def branch(self, sequence: int) -> int:
        """A branch of a sequence, in the same KV partition because the two share pages."""
        found = self.place_of(sequence)
        return self._named(replace(found, number=found.kv_partition.cache.branch(found.number)))

    def free(self, sequence: int) -> None:
        """Drop a sequence and free its pages."""
        found = self.place_of(sequence)
        found.kv_partition.cache.free(found.number)
        del self._places[sequence]

    def settle(self, sequence: int, kv_partition: KVPartition) -> None:
        """Assign this KV partition to an existing sequence whose contents are no longer needed. Raises DoesNotFit."""
        found = self.place_of(sequence)
        if found.kv_partition is kv_partition:
            return
        if kv_partition is self.resident and not self._has_room(found.n_reserved):
            raise DoesNotFit(
                f"a state that was saved on the accelerator needs {found.n_reserved} of its pages to grow, and fewer "
                "are free; close other sessions, or start again from the text"
            )
        found.kv_partition.cache.free(found.number)
        self._places[sequence] = replace(found, kv_partition=kv_partition, number=kv_partition.cache.create())

    def place_of(self, sequence: int) -> SequencePlace:
        """The place of a sequence. Raises ValueError for an unknown one."""
        if sequence not in self._places:
            raise ValueError(f"there is no sequence {sequence}")
        return self._places[sequence]

    def _has_room(self, n_wanted: int) -> bool:
        reserved = sum(each.n_reserved for each in self._places.values() if each.kv_partition is self.resident)
        return reserved + n_wanted <= self.resident.n_pages - self._n_spare

    def _named(self, place: SequencePlace) -> int:
        sequence, self._next_id = self._next_id, self._next_id + 1
        self._places[sequence] = place
        return sequence


@dataclass(frozen=True, slots=True)
class BatchPiece:
    """A batch of one sequence; `members`: indices of its tokens in the batch it was split from."""

    sequence: int
    batch: Batch
    members: Int64s


class SequenceTracker:
    """Batches in flight or finished but not committed, of sequences in their KV partitions."""

    def __init__(self, kv_partitions: KVPartitions, store: RowStore) -> None:
        self._kv_partitions, self._store = kv_partitions, store
        self._under_way: dict[int, InFlightBatch] = {}  # in the order in which they were started
        self._pending: dict[int, InFlightBatch] = {}

    @property
    def sequences(self) -> frozenset[int]:
        """Sequences with a batch in flight."""
        return frozenset(self._under_way)

    def flights(self, *, resident: bool) -> list[InFlightBatch]:
        """Batches in flight in one of the KV partitions, oldest first."""
        return [flight for flight in self._under_way.values() if flight.is_resident is resident]

    def start(self, pieces: Sequence[BatchPiece]) -> list[InFlightBatch]:
        """Place batches in their sequences' memory. Raises ContextOverflow or DoesNotFit before anything starts."""
        names = [piece.sequence for piece in pieces]
        if len(set(names)) < len(names) or self._under_way.keys() & set(names):
            raise ValueError("a sequence has one batch under way at a time")
        started: list[InFlightBatch] = []
        try:
            for piece in pieces:
                place = self._kv_partitions.place_of(piece.sequence)
                step = place.kv_partition.place(place.number, piece.batch)
                rows = self._store.take(len(piece.members))
                is_resident = place.kv_partition is self._kv_partitions.resident
                started.append(InFlightBatch(piece.sequence, is_resident, step, piece.members, rows))
                self._under_way[piece.sequence] = started[-1]
        except BaseException:
            for flight in started:
                self.break_off(flight.sequence)
            raise
        return started

    def land(self, flights: Iterable[InFlightBatch]) -> list[InFlightBatch]:
        """Of these in-flight batches, those that have their logits; they become pending."""
        landed = [flight for flight in flights if flight.logits is not None]
        for flight in landed:
            self._end(flight)
            self._pending[flight.sequence] = self._under_way.pop(flight.sequence)
        return landed

    def commit(self, sequence: int, path: Int32s) -> None:
        """Commit pending tokens by their indices in the caller's batch. Raises ValueError as `KVCache.commit`."""
        flight = self._pending.get(sequence)
        if flight is None:
            raise ValueError(f"sequence {sequence} has nothing pending")
        own = np.minimum(np.searchsorted(flight.members, path), len(flight.members) - 1)
        if (flight.members[own] != path).any():
            raise ValueError(f"the path {path.tolist()} has tokens of another sequence than {sequence}")
        place = self._kv_partitions.place_of(sequence)
        place.kv_partition.commit(place.number, own.astype(np.int32))
        del self._pending[sequence]

    def discard_pending(self) -> None:
        """Drop finished batches that were not committed."""
        for sequence in tuple(self._pending):
            self.break_off(sequence)

    def break_off(self, sequence: int) -> None:
        """Drop a sequence's in-flight and pending batches."""
        flight = self._under_way.pop(sequence, None)
        if flight is not None:
            self._end(flight)
        if flight is not None or self._pending.pop(sequence, None) is not None:
            place = self._kv_partitions.place_of(sequence)
            place.kv_partition.discard(place.number)

    def break_off_all(self) -> None:
        """Drop all in-flight and pending batches."""
        for sequence in (*self._under_way, *self._pending):
            self.break_off(sequence)

    def _end(self, flight: InFlightBatch) -> None:
        flight.ended = True
        self._store.give_back(flight.rows)


def whole(batch: Batch) -> BatchPiece:
    """A batch of one sequence, unchanged. Raises ValueError for several sequences."""
    if not len(batch.tokens) or (batch.sequences != batch.sequences[0]).any():
        raise ValueError("a batch that is started is of one sequence, and has at least one token")
    IDS_ONLY.check(batch, 0)
    return BatchPiece(int(batch.sequences[0]), batch, np.arange(len(batch.tokens)))


def cut(batch: Batch) -> list[BatchPiece]:
    """Split a batch by sequence."""
    if not len(batch.tokens):
        raise ValueError("a batch needs at least one token")
    IDS_ONLY.check(batch, 0)
    names = np.unique(batch.sequences).tolist()
    return [whole(batch)] if len(names) == 1 else [_piece(batch, name) for name in names]


def _piece(batch: Batch, sequence: int) -> BatchPiece:
    members = np.flatnonzero(batch.sequences == sequence)
    places = np.full(len(batch.tokens) + 1, -1, np.int32)  # index -1, parent of a root
    places[members] = np.arange(len(members))
    parents, outputs = places[batch.parents[members]], places[batch.outputs]
    if ((batch.parents[members] >= 0) & (parents < 0)).any():
        raise ValueError("a batch's parents must be of the same sequence")
    own = Batch(
        batch.tokens[members], batch.sequences[members], batch.positions[members], parents, outputs[outputs >= 0]
    )
    return BatchPiece(sequence, own, members)
