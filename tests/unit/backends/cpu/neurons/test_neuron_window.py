"""The window of neurons: what is wanted is there, what was used last stays, near records are read together."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from edgeinfer.backends.cpu.neurons.lowering import turns
from edgeinfer.errors import DeviceFailed
from edgeinfer.offload.bundle import PAGE_BYTES, Bundle
from edgeinfer.offload.neurons.reads import FEWEST_NEURONS, LayerRuns, PageReads, least_bytes, page_reads, read_each
from edgeinfer.offload.neurons.window import NeuronWindow, reading_bytes
from edgeinfer.offload.waiting import Bell

RECORD, NEURONS, RUN = 1088, 480, 96
LAYERS = 2
OFFSET = 3 * PAGE_BYTES


class PaperNeurons:
    """A disk of layers of records whose words say which neuron of which layer they are."""

    def __init__(self) -> None:
        self.layers, disk = [], [np.zeros(OFFSET, np.uint8)]
        self.broken: set[int] = set()
        self.wholes: list[int] = []
        self.pages: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self.n_active, self.delay_s = 0, 0.0
        number = 0
        for layer in range(LAYERS):
            bundles = []
            for first in range(0, NEURONS, RUN):
                data = np.concatenate([self.record(layer, neuron) for neuron in range(first, first + RUN)])
                offset = sum(map(len, disk))
                bundles.append(Bundle(number, f"blk.{layer}", offset, len(data), ()))
                disk.append(np.pad(data, (0, -len(data) % PAGE_BYTES)))
                number += 1
            self.layers.append(LayerRuns(RECORD, NEURONS, tuple(bundles)))
        self.disk = np.concatenate(disk)

    @staticmethod
    def record(layer: int, neuron: int) -> np.ndarray:
        return np.full(RECORD // 4, layer * NEURONS + neuron, np.uint32).view(np.uint8)

    def read(self, bundle: Bundle, into: memoryview) -> None:
        if bundle.number in self.broken:
            raise DeviceFailed(f"bundle {bundle.number} cannot be read")
        with self._lock:
            self.n_active += 1
        time.sleep(self.delay_s)
        self._copy(bundle.offset, into)
        with self._lock:
            self.n_active -= 1
            self.wholes.append(bundle.number)

    def read_records(self, reads: PageReads, pages: np.ndarray) -> None:
        read_each(reads, pages, self._read_pages)

    def _read_pages(self, offset: int, into: memoryview) -> None:
        assert offset % PAGE_BYTES == len(into) % PAGE_BYTES == 0
        assert np.frombuffer(into, np.uint8).ctypes.data % PAGE_BYTES == 0
        if -1 in self.broken:
            raise DeviceFailed("pages cannot be read")
        self._copy(offset, into)
        with self._lock:
            self.pages.append((offset, len(into)))

    def _copy(self, offset: int, into: memoryview) -> None:
        np.frombuffer(into, np.uint8)[:] = self.disk[offset : offset + len(into)]

    def close(self) -> None:
        """Nothing is open."""


def opened(source: PaperNeurons, room: int, n_readers: int = 2, *, keeps: bool = True) -> NeuronWindow:
    """A window with room for so many neurons of each layer."""
    n_bytes = room * LAYERS * RECORD + 1 + reading_bytes(source.layers, n_readers)
    window = NeuronWindow(source, source.layers, n_bytes, n_readers, PAGE_BYTES, keeps=keeps)
    assert window.room(0) == window.room(1) == room
    return window


def have(window: NeuronWindow, layer: int, neurons: list[int]) -> None:
    """Ask for neurons, and look at what is there."""
    wanted = np.array(sorted(neurons), np.int32)
    window.count(layer, wanted, 1, len(wanted))
    for neuron, address in zip(wanted, window.have(layer, wanted), strict=True):
        memory = window._layers[layer].memory
        record = memory[(address - memory.ctypes.data) // RECORD]
        assert np.array_equal(record, PaperNeurons.record(layer, neuron))


@pytest.mark.parametrize("room", [FEWEST_NEURONS, 100, NEURONS])
@pytest.mark.parametrize("n_readers", [1, 3])
def test_what_is_wanted_is_there(room: int, n_readers: int) -> None:
    draw = np.random.default_rng(room)
    window = opened(PaperNeurons(), room, n_readers)
    for _ in range(60):
        count = int(draw.integers(0, room + 1))
        have(window, int(draw.integers(LAYERS)), draw.choice(NEURONS, count, replace=False).tolist())
    reading = window.reading
    window.close()
    assert reading.n_wanted == reading.n_found + reading.n_records_read
    assert reading.record_pass_bytes == reading.n_wanted * RECORD


def test_neurons_used_longest_ago_go_first() -> None:
    source = PaperNeurons()
    window = opened(source, 40)
    have(window, 0, list(range(20)))
    have(window, 0, list(range(20, 40)))
    have(window, 0, list(range(10)))  # again
    have(window, 0, list(range(40, 50)))  # pushes 10 to 19 out
    before = window.reading
    have(window, 0, [*range(10), *range(20, 50)])
    assert window.reading.n_found - before.n_found == 40
    have(window, 0, list(range(10, 20)))
    assert window.reading.n_records_read - before.n_records_read == 10
    window.close()


def test_a_window_shrinks_to_what_was_used_last() -> None:
    window = opened(PaperNeurons(), 120)
    for layer in range(LAYERS):
        have(window, layer, list(range(40)))
        have(window, layer, list(range(200, 280)))
        have(window, layer, list(range(10)))  # again
    whole, start = window.nbytes, window._layers[0].memory.ctypes.data
    assert window.shrink(whole // 4) == whole - window.nbytes >= whole // 4
    assert window.room(0) == window.room(1) == 90
    assert window._layers[0].memory.ctypes.data == start
    before = window.reading
    for layer in range(LAYERS):
        have(window, layer, [*range(10), *range(200, 280)])
    assert window.reading.n_records_read == before.n_records_read  # all 90 are there
    have(window, 0, list(range(10, 40)))
    assert window.reading.n_records_read == before.n_records_read + 30
    draw = np.random.default_rng(0)
    for _ in range(20):
        have(window, 1, draw.choice(NEURONS, 90, replace=False).tolist())
    assert window.shrink(whole) > 0
    assert window.room(0) == FEWEST_NEURONS
    assert window.shrink(whole) == 0
    have(window, 0, list(range(FEWEST_NEURONS)))
    window.close()


def test_an_empty_window_shrinks_too() -> None:
    window = opened(PaperNeurons(), 100)
    have(window, 0, [3, 300])
    assert window.shrink(window.nbytes // 2) > 0
    before = window.reading
    have(window, 0, [3, 300])
    assert window.reading.n_found - before.n_found == 2
    window.close()


def test_layers_do_not_push_each_other_out() -> None:
    window = opened(PaperNeurons(), 32)
    have(window, 0, list(range(32)))
    have(window, 1, list(range(32)))
    before = window.reading
    have(window, 0, list(range(32)))
    window.close()
    assert window.reading.n_found - before.n_found == 32


def test_a_run_is_read_whole_once_and_then_page_by_page() -> None:
    source = PaperNeurons()
    window = opened(source, 32, 1)
    have(window, 0, [0, 100])
    assert (sorted(source.wholes), source.pages) == ([0, 1], [])
    have(window, 0, [1, 2, 50])
    assert sorted(source.wholes) == [0, 1]
    read = [(offset - OFFSET, n_bytes) for offset, n_bytes in source.pages]
    assert read == [(0, PAGE_BYTES), (50 * RECORD // PAGE_BYTES * PAGE_BYTES, PAGE_BYTES)]
    window.close()


def test_near_records_are_read_together_and_bytes_are_counted() -> None:
    source = PaperNeurons()
    window = opened(source, 64, 1)
    have(window, 0, [0])
    before = window.reading
    have(window, 0, [8, 15])  # pages 2 and 3 to 4
    after = window.reading
    window.close()
    assert [(offset - OFFSET, n_bytes) for offset, n_bytes in source.pages] == [(2 * PAGE_BYTES, 3 * PAGE_BYTES)]
    assert after.record_read_bytes - before.record_read_bytes == 3 * PAGE_BYTES


def test_without_a_window_nothing_is_found() -> None:
    window = opened(PaperNeurons(), 64, keeps=False)
    for _ in range(3):
        have(window, 0, [1, 5, 9])
    reading = window.reading
    window.close()
    assert (reading.n_found, reading.n_records_read) == (0, 9)


def test_a_failed_read_leaves_nothing_that_is_not_there() -> None:
    source = PaperNeurons()
    window = opened(source, 32)
    have(window, 0, [3])
    for broken in (1, -1):
        source.broken = {broken}
        with pytest.raises(DeviceFailed, match="cannot be read"):
            have(window, 0, [4, 100])
        source.broken = set()
        have(window, 0, [3, 4, 100])
        have(window, 0, list(range(200, 232)))
    window.close()
    window.close()


def test_nobody_reads_any_more_once_a_read_has_failed() -> None:
    source = PaperNeurons()
    source.delay_s, source.broken = 0.05, {4}
    window = opened(source, 64, 3)
    for _ in range(3):
        with pytest.raises(DeviceFailed, match="cannot be read"):
            have(window, 0, list(range(0, NEURONS, 10)))  # of all runs; the last one fails
        assert source.n_active == 0
    source.delay_s, source.broken = 0.0, set()
    have(window, 0, list(range(0, NEURONS, 10)))
    window.close()


def test_the_least_memory_has_room_for_a_block_of_each_layer() -> None:
    source = PaperNeurons()
    n_bytes = least_bytes(source.layers) + reading_bytes(source.layers, 1)
    window = NeuronWindow(source, source.layers, n_bytes, 1, 0)
    assert window.room(0) >= FEWEST_NEURONS
    window.close()


@pytest.mark.parametrize("gap_bytes", [0, PAGE_BYTES, 20_000, 1 << 30])
@pytest.mark.parametrize("record_bytes", [64, 1088, 2176, 9000 // 64 * 64])
def test_reads_hold_all_records_and_gaps_up_to_a_size(gap_bytes: int, record_bytes: int) -> None:
    draw, most_bytes = np.random.default_rng(gap_bytes + record_bytes), 64 << 10
    memory = np.zeros((700, record_bytes), np.uint8)
    for count in (1, 2, 40, 600):
        starts = np.sort(draw.choice(4000, count, replace=False)) * record_bytes + OFFSET
        slots = draw.permutation(700)[:count]
        reads = page_reads(starts, slots, memory, most_bytes, gap_bytes)
        offsets, sizes, first, stop, _ = reads.reads.T
        assert np.array_equal(first, np.append(0, stop[:-1]))
        assert stop[-1] == count
        assert not (offsets % PAGE_BYTES).any()
        assert not (sizes % PAGE_BYTES).any()
        assert sizes.max() <= most_bytes
        of_read = np.repeat(np.arange(len(offsets)), stop - first)
        assert np.array_equal(offsets[of_read] + reads.records[:, 0], starts)
        assert np.array_equal(reads.records[:, 1], slots)
        assert (reads.records[:, 0] + record_bytes <= sizes[of_read]).all()
        gaps = offsets[1:] - offsets[:-1] - sizes[:-1]
        full = sizes[:-1] + record_bytes + 2 * PAGE_BYTES + gap_bytes > most_bytes
        assert (full | (gaps > gap_bytes - PAGE_BYTES)).all()
        assert count == 1 or gap_bytes < 1 << 30 or len(offsets) <= 2 + 4000 * record_bytes // (most_bytes // 2)


@pytest.mark.parametrize("most", [32, 40, 64, 1000])
def test_turns_take_all_neurons_and_all_blocks(most: int) -> None:
    draw = np.random.default_rng(most)
    for n_neurons in (0, 1, 33, 300, 640):
        neurons = np.sort(draw.choice(640, n_neurons, replace=False)).astype(np.int32)
        found = turns(neurons, 20, most)
        assert [first for first, _, _ in found] == [0, *(stop for _, stop, _ in found[:-1])]
        assert found[-1][1] == 20
        for first, stop, places in found:
            assert places.stop - places.start <= most
            own = neurons[(neurons >= 32 * first) & (neurons < 32 * stop)]
            assert np.array_equal(neurons[places], own)


def test_who_is_interrupted_twice_finds_nothing_that_is_still_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second exception comes while the window waits for its threads, which then write to slots of others."""
    source = PaperNeurons()
    window = opened(source, 40)
    have(window, 0, list(range(0, NEURONS, RUN)))  # runs are checked: later ones are read by pages
    caller, copy, gate, stuck = threading.current_thread(), source._read_pages, threading.Event(), threading.Event()

    def interrupted(offset: int, into: memoryview) -> None:
        if threading.current_thread() is not caller:
            stuck.set()
            gate.wait()
            copy(offset, into)
            return
        assert stuck.wait(10)
        raise KeyboardInterrupt

    def again(_: Bell) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(source, "_read_pages", interrupted)
        patch.setattr(Bell, "wait", again)
        with pytest.raises(KeyboardInterrupt):
            window.have(0, np.arange(1, NEURONS, RUN // 4, dtype=np.int32))
    opening = threading.Timer(0.2, gate.set)
    opening.start()
    have(window, 0, list(range(20, 60)))
    opening.join()
    time.sleep(0.05)
    have(window, 0, list(range(20, 60)))
    window.close()
