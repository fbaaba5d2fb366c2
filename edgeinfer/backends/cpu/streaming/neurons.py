"""The neurons that are in memory: of each layer those used last, and the others read page by page when they are wanted.

In: the runs of records of each layer, a source, memory. Out: addresses of the records of the neurons that a pass wants
("LLM in a flash", Alizadeh et al., arXiv 2312.11514: windowing, and only the difference read). Each layer has room for
a number of neurons; those used longest ago go first. A run is read whole, and checked, when it is first wanted; later
only the pages of records are. Threads sleep while nothing is to be read. Knows nothing of activations.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from queue import SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Int32s
from edgeinfer.backends.cpu.bundles.contents import PAGE_BYTES, Bundle, Contents
from edgeinfer.backends.cpu.bundles.orders import Orders, positions_of
from edgeinfer.backends.cpu.memory import paged
from edgeinfer.backends.cpu.streaming.window import Source
from edgeinfer.backends.stored import Reading

Int64s = NDArray[np.int64]
GAP_PAGES = 1
"""Pages between two records that are read along: a read more takes longer."""
FEWEST_NEURONS = 32
"""A layer has room for at least so many: a block."""


class PageSource(Source, Protocol):
    """A source that reads parts of bundles too."""

    def read_pages(self, offset: int, into: memoryview) -> None:
        """Fill `into` from `offset` of the data, both multiples of PAGE_BYTES; nothing is checked."""
        ...


@dataclass(frozen=True, slots=True)
class LayerRuns:
    """The neurons of a layer: `record_bytes` each, in bundles of whole records, one after the other.

    `positions`: where each lies among them, int64[n_neurons]; None for that of its number.
    """

    record_bytes: int
    n_neurons: int
    bundles: tuple[Bundle, ...]
    positions: Int64s | None = None

    @property
    def length(self) -> int:
        """Neurons of all bundles but the last."""
        return -(-self.bundles[0].nbytes // self.record_bytes)


@dataclass(frozen=True, slots=True)
class _Reads:
    """Reads that one thread does, one after the other, into its pages, and the records that are taken from there.

    pages    int64[reads, 3]: first byte of the data, first byte of memory, bytes
    records  int64[records, 2]: first byte in memory, slot
    whole    a bundle that is checked, in place of pages
    """

    pages: Int64s
    records: Int64s
    whole: Bundle | None = None


class _Layer:
    """What is there of one layer."""

    def __init__(self, runs: LayerRuns, memory: NDArray[np.uint8]) -> None:
        self.runs, self.memory = runs, memory
        self.slots = np.full(runs.n_neurons, -1, np.int64)
        self.owners = np.full(len(memory), -1, np.int64)
        self.used = np.full(len(memory), -1, np.int64)
        self.is_checked = np.zeros(len(runs.bundles), bool)
        self.starts = np.array([bundle.offset for bundle in runs.bundles], np.int64)
        self.turn = 0

    def forget(self, neurons: Int64s | None = None) -> None:
        """These neurons, or all, are not there."""
        neurons = np.flatnonzero(self.slots >= 0) if neurons is None else neurons
        neurons = neurons[self.slots[neurons] >= 0]
        slots = self.slots[neurons]
        self.slots[neurons], self.owners[slots], self.used[slots] = -1, -1, -1

    def place(self, missing: Int64s) -> None:
        """Give neurons the slots of those used longest ago, but for those of this turn."""
        taken = np.argpartition(self.used, len(missing) - 1)[: len(missing)]
        before = self.owners[taken]
        self.slots[before[before >= 0]] = -1
        self.slots[missing], self.owners[taken], self.used[taken] = taken, missing, self.turn


class NeuronWindow:
    """Memory for neurons of layers. Use it from one thread; close it to stop the others."""

    def __init__(
        self, source: PageSource, layers: Sequence[LayerRuns], n_bytes: int, n_readers: int, *, keeps: bool = True
    ) -> None:
        """`n_bytes` of memory in all: `least_bytes` and the largest bundle for each reader, at least.

        `keeps` False, for comparisons: every pass reads all it wants.
        """
        self._source, self._keeps = source, keeps
        largest = max(bundle.padded_bytes for layer in layers for bundle in layer.bundles)
        share = (n_bytes - n_readers * largest) / sum(layer.n_neurons * layer.record_bytes for layer in layers)
        self._layers = []
        for layer in layers:
            count = min(layer.n_neurons, max(FEWEST_NEURONS, int(share * layer.n_neurons)))
            self._layers.append(_Layer(layer, paged(count * layer.record_bytes).reshape(count, -1)))
        self._pages: SimpleQueue[NDArray[np.uint8]] = SimpleQueue()
        for _ in range(n_readers):
            self._pages.put(paged(largest))
        self._largest, self._n_readers = largest, n_readers
        self._threads = ThreadPoolExecutor(n_readers, thread_name_prefix="edgeinfer-neurons")
        self._sizes: Counter[int] = Counter()
        self._n_bytes, self._waited_s = 0, 0.0
        self._n_wanted = self._n_found = self._n_read = 0
        self._dense_bytes = self._token_bytes = self._pass_bytes = 0

    def room(self, layer: int) -> int:
        """Neurons of a layer that may be wanted at a time."""
        return len(self._layers[layer].owners)

    def count(self, layer: int, n_of_tokens: int, n_of_pass: int) -> None:
        """A pass uses a layer: so many neurons of each token by itself, added up, and of all tokens together."""
        runs = self._layers[layer].runs
        self._dense_bytes += sum(bundle.padded_bytes for bundle in runs.bundles)
        self._token_bytes += n_of_tokens * runs.record_bytes
        self._pass_bytes += n_of_pass * runs.record_bytes
        if not self._keeps:
            self._layers[layer].forget()

    def have(self, layer: int, neurons: Int32s) -> Int64s:
        """Addresses of records, int64[n], of neurons int32[n] in order, `room` at most; valid until the next call.

        Raises what reading raised; what was wanted is not there then.
        """
        held, wanted = self._layers[layer], neurons.astype(np.int64)
        held.turn += 1
        found = held.slots[wanted] >= 0
        missing = wanted[~found]
        held.used[held.slots[wanted[found]]] = held.turn
        self._n_wanted += len(wanted)
        self._n_found += len(wanted) - len(missing)
        if len(missing):
            self._read(held, missing)
        addresses: Int64s = held.memory.ctypes.data + held.slots[wanted] * held.runs.record_bytes
        return addresses

    def _read(self, held: _Layer, missing: Int64s) -> None:
        """Give neurons places, and read them there; what is not there in the end has none."""
        started, asked, read = time.perf_counter(), list[Future[None]](), self._reader(held)
        try:
            held.place(missing)
            for reads in self._planned(held, missing):
                asked.append(self._threads.submit(read, reads))
            for future in asked:
                future.result()
        except BaseException:
            for future in asked:
                future.cancel()
            wait(asked)  # nobody may write to places that are given to others next
            held.forget(missing)
            raise
        self._waited_s += time.perf_counter() - started
        self._n_read += len(missing)

    @property
    def reading(self) -> Reading:
        """What was read so far."""
        return Reading(
            self._n_bytes,
            self._waited_s,
            0,
            dict(self._sizes),
            self._n_wanted,
            self._n_found,
            n_neurons_read=self._n_read,
            neuron_dense_bytes=self._dense_bytes,
            neuron_token_bytes=self._token_bytes,
            neuron_pass_bytes=self._pass_bytes,
            neuron_read_bytes=self._n_bytes,
        )

    def close(self) -> None:
        """Stop reading. Safe to call twice."""
        self._threads.shutdown(cancel_futures=True)

    def _planned(self, held: _Layer, missing: Int64s) -> list[_Reads]:
        """How missing neurons are read, in the order in which they lie."""
        positions, found = missing, []
        if held.runs.positions is not None:
            lie = np.argsort(held.runs.positions[missing])
            missing, positions = missing[lie], held.runs.positions[missing[lie]]
        runs = positions // held.runs.length
        places = (positions - runs * held.runs.length) * held.runs.record_bytes  # in their bundles
        is_new = ~held.is_checked[runs]
        for run in np.unique(runs[is_new]).tolist():
            own = runs == run
            records = np.stack([places[own], held.slots[missing[own]]], axis=1)
            found.append(_Reads(np.zeros((0, 3), np.int64), records, held.runs.bundles[run]))
            self._add(held.runs.bundles[run].padded_bytes)
        known = missing[~is_new]
        if len(known):
            starts = held.starts[runs[~is_new]] + places[~is_new]
            size, slots = held.runs.record_bytes, held.slots[known]
            for part, some in _cut(starts, size, slots, self._largest, self._n_readers):
                found.append(_Reads(part, some))
                for n_bytes in part[:, 2].tolist():
                    self._add(n_bytes)
        return found

    def _add(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        self._sizes[n_bytes] += 1

    def _reader(self, held: _Layer) -> Callable[[_Reads], None]:
        size = held.runs.record_bytes

        def read(reads: _Reads) -> None:
            pages = self._pages.get()
            try:
                if reads.whole is not None:
                    self._source.read(reads.whole, pages.data[: reads.whole.padded_bytes])
                for offset, start, n_bytes in reads.pages.tolist():
                    self._source.read_pages(offset, pages.data[start : start + n_bytes])
                records = np.lib.stride_tricks.sliding_window_view(pages, size)
                held.memory[reads.records[:, 1]] = records[reads.records[:, 0]]
                if reads.whole is not None:
                    held.is_checked[held.runs.bundles.index(reads.whole)] = True
            finally:
                self._pages.put(pages)

        return read


def runs_of(contents: Contents, orders: Orders = ()) -> list[LayerRuns]:
    """Where the neurons of each sparse layer are, in the order of a file, or in that of their numbers."""
    layouts = (layer.layout for layer in contents.layers)
    positions = map(positions_of, orders) if orders else [None] * len(contents.layers)
    return [
        LayerRuns(layout.record_bytes, layout.n_neurons, tuple(contents.runs(number)), lie)
        for number, (layout, lie) in enumerate(zip(layouts, positions, strict=True))
    ]


def least_bytes(layers: Sequence[LayerRuns]) -> int:
    """Memory for the fewest neurons that there is room for, when all layers have the same share of theirs."""
    share = max(min(1.0, FEWEST_NEURONS / layer.n_neurons) for layer in layers)
    return int(share * sum(layer.n_neurons * layer.record_bytes for layer in layers)) + 1


def _cut(starts: Int64s, record_bytes: int, slots: Int64s, most: int, n_readers: int) -> list[tuple[Int64s, Int64s]]:
    """Reads of the pages of records that begin at `starts` of the data, near ones together, shared out.

    Each part is as `_Reads` says, `most` bytes of pages at most.
    """
    first, stop = starts // PAGE_BYTES, (starts + record_bytes - 1) // PAGE_BYTES + 1
    parts, begin = [], 0
    target = min(most, max(1, int((stop - first).sum()) // n_readers) * PAGE_BYTES)
    bounds = [0]
    gaps = np.concatenate([[True], first[1:] > stop[:-1] + GAP_PAGES])
    filled = 0
    previous = int(first[0])
    for place, (page, end, apart) in enumerate(zip(first.tolist(), stop.tolist(), gaps.tolist(), strict=True)):
        more = (end - page if apart else end - previous) * PAGE_BYTES
        if filled + more > target and place > begin:
            bounds.append(place)
            begin, filled, more = place, 0, (end - page) * PAGE_BYTES
            gaps[place] = True
        filled, previous = filled + more, end
    for begin, end in pairwise([*bounds, len(starts)]):
        heads = begin + np.flatnonzero(gaps[begin:end])
        tails = np.append(heads[1:], end) - 1
        sizes = (stop[tails] - first[heads]) * PAGE_BYTES
        into = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        read = np.cumsum(gaps[begin:end]) - 1
        at = into[read] + starts[begin:end] - first[heads][read] * PAGE_BYTES
        parts.append((np.stack([first[heads] * PAGE_BYTES, into, sizes], 1), np.stack([at, slots[begin:end]], 1)))
    return parts
