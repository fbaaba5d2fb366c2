"""How missing neurons of a layer are read: whole runs until they have been checked, then only pages of records.

In: where records lie, and the slots that they go to. Out: `PageReads`. Neighbouring records are read together where
reading the gap between them takes less time than another read. Knows neither files nor which neurons a pass needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.offload.bundle import PAGE_BYTES, Bundle
from edgeinfer.offload.page_reads import PageReads
from edgeinfer.offload.window import BundleSource

Int64s = NDArray[np.int64]
READ_BYTES = 256 << 10
"""Largest read: disks reach their best rate at this size, and each reader needs a buffer of it."""
FEWEST_NEURONS = 32
"""A layer has room for at least this many neurons: one block."""


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
