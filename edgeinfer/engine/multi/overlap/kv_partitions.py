"""Assigns sequences to KV partitions: the accelerator while there is room, else the machine's memory.

In: sequences that are created, branched and freed. Out: the KV partition of each, its number there, and batches placed
in it. A sequence stays in its partition until it is freed; only restoring a saved state may change it, because the
sequence then has nothing to move. Knows neither devices nor passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.memories import KVMemory
from edgeinfer.engine.kv.kv_records import Copies
from edgeinfer.engine.kv.kvcache import KVCache, pages_for
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.step import Batch, Int32s, Step


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
