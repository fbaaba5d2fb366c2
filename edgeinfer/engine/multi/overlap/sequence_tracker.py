"""Tracks batches in flight: started in the sequence's KV partition, finished, committed, or cancelled.

In: batches, paths. Out: in-flight batches, and logits where they are finished. A batch of several sequences is split
into one per sequence. Knows neither devices nor schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edgeinfer.engine.multi.overlap.kv_partitions import KVPartitions
from edgeinfer.engine.multi.overlap.micro_batches import InFlightBatch
from edgeinfer.engine.multi.overlap.rows import Int64s, RowStore
from edgeinfer.graph.step import IDS_ONLY, Batch, Int32s


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
