"""Neurons in memory while a streamed model runs: those that a pass needs are fetched before its calls compute them.

In: an open bundle file, sparse layers, memory. Out: rounds in which calls run on as many active neurons as fit. Records
are read past the page cache if possible, by compiled code if the system has the functions that it calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.bundles.file import BundleFile, cut_short, unreadable
from edgeinfer.backends.cpu.lanes.streamed_weights import Bundles
from edgeinfer.backends.cpu.neurons.catalogue import READ_RECORDS
from edgeinfer.backends.cpu.neurons.layers import SparseLayer
from edgeinfer.backends.cpu.neurons.lowering import FeedArguments, SparseFfnLowering, turns
from edgeinfer.backends.cpu.neurons.order import orders_in, runs_of
from edgeinfer.backends.cpu.record_layers import RecordLowering
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.offload.bundle import PAGE_BYTES, Bundle
from edgeinfer.offload.bundle_file import ByteSource
from edgeinfer.offload.neurons.reads import CompiledReads, PageReads, read_each, system_reads
from edgeinfer.offload.neurons.window import NeuronWindow
from edgeinfer.offload.weights import OffloadedWeights, RecordUse, WeightReads


class Reader(Protocol):
    """Compiled code that does reads."""

    def __call__(self, reads: PageReads, pages: NDArray[np.uint8], descriptor: int, base: int, granule: int) -> None:
        """Do reads of a file whose data begins at `base` until one fails; places are multiples of `granule`."""
        ...


def compiled_reads(library: KernelLibrary) -> CompiledReads | None:
    """Compiled reads, if the system has the functions that they call."""
    system = system_reads()
    return None if system is None else CompiledReads(library.function(READ_RECORDS), system)


class _Source:
    """The `PageSource` of a lane."""

    def __init__(self, bundles: Bundles, library: KernelLibrary) -> None:
        self._bundles, self._compiled = bundles, compiled_reads(library)

    def read(self, bundle: Bundle, into: memoryview) -> None:
        """Fill `into` with a bundle. Raises DeviceFailed, BadBundle."""
        self._bundles.read(bundle, into)

    def read_records(self, reads: PageReads, pages: NDArray[np.uint8]) -> None:
        """Do reads that no other thread has taken until none are left, unchecked. Raises DeviceFailed, BadBundle."""
        read_records(self._bundles.file, reads, pages, self._bundles.source, self._compiled)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._bundles.close()


class NeuronReading:
    """The neurons of one lane. Close it to stop the reading threads."""

    def __init__(
        self, source: Bundles, layers: Sequence[SparseLayer], stored: OffloadedWeights, library: KernelLibrary
    ) -> None:
        file = source.file
        runs = runs_of(layers, file.contents.bundles, orders_in(file.path, file.table, layers))
        sizes = stored.record_bytes, stored.record_readers, stored.gap_bytes
        self._window = NeuronWindow(_Source(source, library), runs, *sizes)

    @property
    def reading(self) -> WeightReads:
        """What was read so far."""
        return self._window.reading

    @property
    def use(self) -> RecordUse:
        """How neurons fired so far."""
        return self._window.use

    def rounds(self, feed: object, lowering: RecordLowering) -> Iterator[None]:
        """Fetch the active neurons of a layer, as many at a time as fit, for the calls of the rest of the layer."""
        assert isinstance(feed, FeedArguments)
        assert isinstance(lowering, SparseFfnLowering)
        neurons, number = lowering.listed(), feed.number
        self._window.count(number, neurons, lowering.n_tokens(feed), lowering.n_firing(feed))
        for first, stop, places in turns(neurons, feed.layer.layout.n_blocks, self._window.room(number)):
            lowering.take(feed, first, stop, places, self._window.have(number, neurons[places]))
            yield

    def shrink(self, n_bytes: int) -> int:
        """Give back up to `n_bytes` of room for neurons, for good, between two steps; returns the bytes."""
        return self._window.shrink(n_bytes)

    def close(self) -> None:
        """Stop reading and free the memory. Safe to call twice."""
        self._window.close()


def read_records(
    file: BundleFile, reads: PageReads, pages: NDArray[np.uint8], source: ByteSource, compiled: Reader | None
) -> None:
    """Do reads that no other thread has taken until none are left; unchecked: read the whole bundles first.

    `pages`: page aligned, with room for the largest read. Raises DeviceFailed, BadBundle.
    """
    if compiled is None or source.descriptor is None:
        read_each(reads, pages, lambda offset, memory: file.read_pages(offset, memory, source))
        return
    granule = PAGE_BYTES if source.is_direct else 1
    compiled(reads, pages, source.descriptor, file.data_offset, granule)
    failure = reads.failure
    if failure is None:
        return
    what = f"a part of a bundle ({failure.n_bytes} bytes at {file.data_offset + failure.offset})"
    if failure.error is not None:
        raise unreadable(file.path, what, os.strerror(failure.error))
    raise cut_short(file.path, what, failure.n_read)
