"""The neurons in memory: the most recently used ones of each layer; the others are read page by page on demand.

In: the runs of records of each layer, a source, memory. Out: addresses of the records of the neurons that a pass needs
("LLM in a flash", Alizadeh et al., arXiv 2312.11514: windowing, and only the difference read). Each layer has room for
a number of neurons and evicts the least recently used ones. The first time a run is needed it is read whole and
checked; later only the pages of records are read (`neuron_reads`). A `FiringMeter` predicts the hit rate of a window of
any size, whatever the present size. Threads sleep while there is nothing to read. Knows nothing of activations.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeinfer.graph.step import Int32s
from edgeinfer.jit.memory import give_back, paged
from edgeinfer.offload.neurons.readers import Readers
from edgeinfer.offload.neurons.reads import (
    FEWEST_NEURONS,
    Int64s,
    LayerRuns,
    PageReads,
    PageSource,
    page_reads,
    read_bytes,
    run_bytes,
)
from edgeinfer.offload.weights import RecordUse, WeightReads

TOKENS_BACK = (1, 2, 4, 8, 16, 32)
"""Sizes of windows that are simulated: each holds the neurons that fired for that many recent tokens."""
EVERY = 4
"""One in this many tokens is examined, which takes some hundredths of a millisecond a layer."""
NEVER = -(1 << 40)


class FiringMeter:
    """Counts firing neurons in all layers of a model, which have `sizes` neurons."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._fired = [np.full(size, NEVER, np.int64) for size in sizes]
        self._turns = [0] * len(sizes)
        self._n_fired = self._n_asked = self._n_tokens = 0
        self._counts = np.zeros((len(TOKENS_BACK), 4), np.int64)  # held, of how many; found, of how many

    def see(self, layer: int, neurons: NDArray[np.int64], n_tokens: int, n_firing: int) -> None:
        """Count a pass: `n_tokens` tokens need neurons int64[n] of a layer, which fire `n_firing` times in all."""
        fired, turn = self._fired[layer], self._turns[layer] + n_tokens
        self._turns[layer] = turn
        self._n_fired += n_firing
        self._n_asked += n_tokens * len(fired)
        self._n_tokens += n_tokens if layer == 0 else 0
        if n_tokens == 1 and turn % EVERY == 0 and len(neurons):
            before = turn - fired
            wanted = before[neurons]
            for place, back in enumerate(TOKENS_BACK):
                if back < turn:
                    held, found = np.count_nonzero(before <= back), np.count_nonzero(wanted <= back)
                    self._counts[place] += held, len(fired), found, len(neurons)
        fired[neurons] = turn

    @property
    def use(self) -> RecordUse:
        """The counts so far, as shares."""
        found = tuple((held / of, hits / n) for held, of, hits, n in self._counts.tolist() if n)
        return RecordUse(self._n_fired / max(1, self._n_asked), found, self._n_tokens)


class _Layer:
    """One layer's neurons in memory."""

    def __init__(self, runs: LayerRuns, memory: NDArray[np.uint8]) -> None:
        self.runs, self.memory = runs, memory
        self.slots = np.full(runs.n_neurons, -1, np.int64)
        self.owners = np.full(len(memory), -1, np.int64)
        self.used = np.full(len(memory), -1, np.int64)
        self.is_checked = np.zeros(len(runs.bundles), bool)
        self.starts = np.array([bundle.offset for bundle in runs.bundles], np.int64)
        self.turn = 0

    def forget(self) -> None:
        """Mark all neurons as absent."""
        self.slots[:], self.owners[:], self.used[:] = -1, -1, -1

    def room(self, count: int) -> Int64s:
        """Free the slots of the least recently used neurons, never those of this turn, and return them."""
        taken = np.argpartition(self.used, count - 1)[:count]
        before = self.owners[taken]
        self.slots[before[before >= 0]] = -1
        self.owners[taken] = self.used[taken] = -1
        return taken

    def take(self, neurons: Int64s, taken: Int64s) -> None:
        """Assign slots to neurons; an interruption never leaves a neuron marked present that is not."""
        self.owners[taken], self.used[taken] = neurons, self.turn
        self.slots[neurons] = taken

    def shrink(self, count: int) -> None:
        """Reduce the room to `count` neurons: the last used ones move to the first slots, the rest is given back."""
        kept = np.argpartition(-self.used, count - 1)[:count]
        moved, free = kept[kept >= count], np.setdiff1d(np.arange(count), kept)
        self.slots[self.owners[free][self.owners[free] >= 0]] = -1
        self.memory[free], self.owners[free], self.used[free] = self.memory[moved], self.owners[moved], self.used[moved]
        beyond = self.owners[count:]
        self.slots[beyond[beyond >= 0]] = -1
        there = np.flatnonzero(self.owners[:count] >= 0)
        self.slots[self.owners[there]] = there
        give_back(self.memory[count:].reshape(-1))
        self.memory, self.owners, self.used = self.memory[:count], self.owners[:count], self.used[:count]


class NeuronWindow:
    """Memory for the neurons of layers. Use it from one thread; close it to stop the reading threads."""

    def __init__(
        self,
        source: PageSource,
        layers: Sequence[LayerRuns],
        n_bytes: int,
        n_readers: int,
        gap_bytes: int,
        *,
        keeps: bool = True,
    ) -> None:
        """`n_bytes`: the total memory, at least `least_bytes` plus `reading_bytes`.

        `gap_bytes`: largest gap between records that is read as well. `keeps` False, for comparisons: every pass reads
        all the neurons it needs.
        """
        self._source, self._keeps = source, keeps
        share = (n_bytes - reading_bytes(layers, n_readers)) / sum(
            layer.n_neurons * layer.record_bytes for layer in layers
        )
        self._layers = []
        for layer in layers:
            count = min(layer.n_neurons, max(FEWEST_NEURONS, int(share * layer.n_neurons)))
            self._layers.append(_Layer(layer, paged(count * layer.record_bytes).reshape(count, -1)))
        self._most_bytes, self._gap_bytes = read_bytes(layers), gap_bytes
        self._pages = paged(reading_bytes(layers, n_readers))
        self._run_bytes = run_bytes(layers)
        self._readers = Readers(n_readers)
        self._meter = FiringMeter([layer.n_neurons for layer in layers])
        self._sizes: Counter[int] = Counter()
        self._n_bytes, self._waited_s = 0, 0.0
        self._n_wanted = self._n_found = self._n_read = 0
        self._dense_bytes = self._token_bytes = self._pass_bytes = 0

    def room(self, layer: int) -> int:
        """Most neurons of a layer that `have` can be asked for at a time."""
        return len(self._layers[layer].owners)

    @property
    def nbytes(self) -> int:
        """Bytes of the memory for neurons, in use or not."""
        return sum(held.memory.nbytes for held in self._layers)

    def shrink(self, n_bytes: int) -> int:
        """Give `n_bytes` back for good, the least recently used share of each layer. Call it between two passes.

        Returns the bytes given back, which are fewer if only the minimum of the layers is left.
        """
        self._readers.settle()
        before = self.nbytes
        share = 1 - n_bytes / before
        for held in self._layers:
            count = max(min(FEWEST_NEURONS, len(held.used)), int(share * len(held.used)))
            if count < len(held.used):
                held.shrink(count)
        return before - self.nbytes

    def count(self, layer: int, neurons: Int32s, n_tokens: int, n_firing: int) -> None:
        """Count a pass: `n_tokens` tokens use neurons int32[n] of a layer; `n_firing` is the sum over single tokens."""
        runs = self._layers[layer].runs
        self._dense_bytes += sum(bundle.padded_bytes for bundle in runs.bundles)
        self._token_bytes += n_firing * runs.record_bytes
        self._pass_bytes += len(neurons) * runs.record_bytes
        self._meter.see(layer, neurons.astype(np.int64), n_tokens, n_firing)
        if not self._keeps:
            self._layers[layer].forget()

    def have(self, layer: int, neurons: Int32s) -> Int64s:
        """Addresses int64[n] of the records of neurons int32[n], in order, at most `room`; valid until the next call.

        Raises the error of a failed read; the missing neurons are then still absent.
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
        """Read neurons into free slots, which they own only once all have been read."""
        started, taken = time.perf_counter(), held.room(len(missing))
        slots, positions = held.runs.laid(taken, missing)
        is_new = ~held.is_checked[positions // held.runs.length]
        if is_new.any():
            self._read_runs(held, slots[is_new], positions[is_new])
            slots, positions = slots[~is_new], positions[~is_new]
        if len(slots):
            self._read_pages(held, slots, positions)
        held.take(missing, taken)
        self._waited_s += time.perf_counter() - started
        self._n_read += len(missing)

    def _read_pages(self, held: _Layer, slots: Int64s, positions: Int64s) -> None:
        """Read the records at these increasing positions, all in checked runs, into slots."""
        runs = positions // held.runs.length
        starts = held.starts[runs] + (positions - runs * held.runs.length) * held.runs.record_bytes
        reads = page_reads(starts, slots, held.memory, self._most_bytes, self._gap_bytes)

        def read(number: int) -> None:
            self._source.read_records(reads, self._pages[number * self._most_bytes : (number + 1) * self._most_bytes])

        self._readers.run(read, len(reads.reads), reads.stop)
        self._count(reads)

    def _count(self, reads: PageReads) -> None:
        sizes, counts = np.unique(reads.reads[:, 1], return_counts=True)
        for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
            self._sizes[size] += count
            self._n_bytes += size * count

    def _read_runs(self, held: _Layer, slots: Int64s, positions: Int64s) -> None:
        """Read the whole runs that hold these positions, check them, and copy the records at the positions to slots."""
        runs = positions // held.runs.length
        waiting = np.unique(runs).tolist()

        def read(number: int) -> None:
            pages = self._pages[number * self._run_bytes : (number + 1) * self._run_bytes]
            while waiting:
                try:
                    run = waiting.pop()
                except IndexError:  # another thread took the last one
                    return
                bundle, own = held.runs.bundles[run], runs == run
                self._source.read(bundle, pages.data[: bundle.padded_bytes])
                records = pages[: len(pages) // held.runs.record_bytes * held.runs.record_bytes]
                records = records.reshape(-1, held.runs.record_bytes)
                held.memory[slots[own]] = records[positions[own] - run * held.runs.length]
                held.is_checked[run] = True

        for run in waiting:
            size = held.runs.bundles[run].padded_bytes
            self._sizes[size] += 1
            self._n_bytes += size
        n_threads = min(len(waiting), len(self._pages) // self._run_bytes)
        self._readers.run(read, n_threads, waiting.clear)

    @property
    def use(self) -> RecordUse:
        """How neurons fired so far."""
        return self._meter.use

    @property
    def reading(self) -> WeightReads:
        """What was read so far."""
        return WeightReads(
            self._n_bytes,
            self._waited_s,
            0,
            dict(self._sizes),
            self._n_wanted,
            self._n_found,
            read_s=self._waited_s,
            n_records_read=self._n_read,
            record_dense_bytes=self._dense_bytes,
            record_token_bytes=self._token_bytes,
            record_pass_bytes=self._pass_bytes,
            record_read_bytes=self._n_bytes,
        )

    def close(self) -> None:
        """Stop reading and free the memory. Safe to call twice."""
        self._readers.close()
        for held in self._layers:
            held.memory = held.memory[:0].copy()
        self._pages = self._pages[:0].copy()


def reading_bytes(layers: Sequence[LayerRuns], n_readers: int) -> int:
    """Bytes of the buffers of all readers, from which neurons are copied to their slots."""
    return max(run_bytes(layers), n_readers * read_bytes(layers))
