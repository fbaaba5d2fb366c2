"""Slots that are filled without the interpreter: each holds what its bundle has in the file, whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.backends.cpu.lanes.compiled_slots import CompiledSlots, FilePlace, can_fill
from edgeinfer.errors import BadBundle, DeviceFailed, EngineClosed
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import paged
from edgeinfer.offload.bundle import PAGE_BYTES, Bundle
from edgeinfer.offload.expert_cache import ExpertCache
from edgeinfer.offload.slot_records import BROKEN, GUESS

pytestmark = pytest.mark.skipif(not can_fill(), reason="this system has no reads at places")

LAYERS, EXPERTS, PAGES = 4, 8, 5


class File:
    """A file of random bundles, on disk."""

    def __init__(self, path: Path) -> None:
        draw = np.random.default_rng(11)
        self.path, count = path, LAYERS * EXPERTS
        self.bytes = draw.integers(1, 256, (count, PAGES * PAGE_BYTES), np.uint8)
        path.write_bytes(self.bytes.tobytes())
        self.descriptor = os.open(path, os.O_RDONLY)
        size = PAGES * PAGE_BYTES
        bundles = [Bundle(number, "", number * size, size, (), number % EXPERTS) for number in range(count)]
        self.layers = [bundles[first : first + EXPERTS] for first in range(0, count, EXPERTS)]
        self.damaged: set[int] = set()

    def read(self, bundle: Bundle, into: memoryview) -> None:
        if os.preadv(self.descriptor, [into], bundle.offset) < len(into):
            raise DeviceFailed(f"bundle {bundle.number} cannot be read")

    def check(self, bundle: Bundle, data: NDArray[np.uint8]) -> None:
        if bundle.number in self.damaged:
            raise BadBundle(f"bundle {bundle.number} is damaged")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    found = File(tmp_path / "bundles")
    yield found
    os.close(found.descriptor)


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    return kernel_library()


class Cache:
    """A cache over the file, whose answers are compared with it."""

    def __init__(self, file: File, library: KernelLibrary, n_slots: int, n_readers: int = 2) -> None:
        self.file, self.memory = file, paged(n_slots, PAGES * PAGE_BYTES)

        def filling(bundles: Sequence[Bundle], memory: NDArray[np.uint8], n_readers: int) -> CompiledSlots:
            places = [FilePlace(bundle.offset, bundle.padded_bytes) for bundle in bundles]
            return CompiledSlots(file.descriptor, places, memory, n_readers, library)

        self.cache = ExpertCache(file, file.layers, self.memory, filling, n_readers)

    def have(self, layer: int, experts: list[int]) -> None:
        self.cache.ask(layer, experts)
        for expert, address in zip(experts, self.cache.wait(layer, experts), strict=True):
            slot = (int(address) - self.memory.ctypes.data) // self.memory.strides[0]
            assert np.array_equal(self.memory[slot], self.file.bytes[layer * EXPERTS + expert])


def test_slots_hold_what_is_in_the_file_however_they_are_asked_for(file: File, library: KernelLibrary) -> None:
    draw, began = np.random.default_rng(2), time.perf_counter()
    cached = Cache(file, library, n_slots=9, n_readers=3)
    for number in range(3000):
        layer = number % LAYERS
        count = int(draw.integers(1, cached.cache.most_at_once + 1))
        experts = sorted(draw.choice(EXPERTS, min(count, EXPERTS), replace=False).tolist())
        if draw.random() < 0.1:
            cached.cache.ask(layer, experts)  # and nobody waits: a pass that was broken off
            continue
        cached.have(layer, experts)
        following = (layer + 1) % LAYERS
        cached.cache.guess([(following, int(each)) for each in draw.choice(EXPERTS, 4, replace=False)])
        if draw.random() < 0.02:
            cached.cache.resize(int(draw.integers(0, 12)) * cached.memory.strides[0], most_used=2)
    reading = cached.cache.reading
    cached.cache.close()
    assert reading.n_bytes == sum(size * count for size, count in reading.sizes.items())
    assert 0 < reading.n_proved <= reading.n_guessed
    assert 0 < reading.n_found < reading.n_wanted
    assert 0 < reading.read_s <= time.perf_counter() - began  # reads that overlap count once


def test_what_cannot_be_read_is_raised_by_who_needs_it_and_over_when_it_can(file: File, library: KernelLibrary) -> None:
    cached = Cache(file, library, n_slots=8)
    last = LAYERS - 1
    os.truncate(file.path, file.bytes.nbytes - PAGE_BYTES)
    for _ in range(4):
        cached.cache.guess([(last, EXPERTS - 1)])
        with pytest.raises(DeviceFailed, match="bundle 31"):
            cached.have(last, [0, EXPERTS - 1])
        cached.have(last, [0, 1, 2, 3, 4])
    file.path.write_bytes(file.bytes.tobytes())
    cached.have(last, [0, EXPERTS - 1])
    cached.cache.close()


def test_what_is_damaged_is_refused_until_it_is_mended(file: File, library: KernelLibrary) -> None:
    cached = Cache(file, library, n_slots=8)
    file.damaged.add(3)
    for _ in range(3):
        with pytest.raises(BadBundle, match="bundle 3 "):
            cached.have(0, [2, 3])
    file.damaged.clear()
    cached.have(0, [2, 3])
    cached.cache.close()


def test_the_lowest_order_comes_first_and_what_is_dropped_never(file: File, library: KernelLibrary) -> None:
    memory = paged(4, PAGES * PAGE_BYTES)
    places = [FilePlace(bundle.offset, bundle.padded_bytes) for layer in file.layers for bundle in layer]
    slots = CompiledSlots(file.descriptor, places, memory, 0, library)  # nobody reads yet
    slots.slots.tags[:] = 5, 6, 7, 8
    slots.want([0], GUESS)
    slots.want([1, 2, 3], 1)
    slots.drop([2])
    assert slots.slots.orders.tolist() == [GUESS, 1, 0, 3]
    reader = threading.Thread(target=slots._read_on)
    reader.start()
    slots.settle([1])
    slots.settle([0, 1, 2, 3])
    slots.close()
    os.write(slots._pipes[1], b" ")
    reader.join(10)
    assert not reader.is_alive()
    assert slots.slots.held.tolist() == [5, 6, -1, 8]
    assert BROKEN not in slots.slots.held
    assert [int(count) for count in slots.counts[5:9]] == [1, 1, 0, 1]


def test_closing_ends_who_waits_for_slots(file: File, library: KernelLibrary) -> None:
    memory = paged(2, PAGES * PAGE_BYTES)
    slots = CompiledSlots(file.descriptor, [FilePlace(0, PAGE_BYTES)], memory, 0, library)
    slots.want([0], 1)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            slots.settle([0])
        except EngineClosed as reason:
            failures.append(reason)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not slots._record["is_waiting"][0]:
        time.sleep(0.001)
    slots.close()
    waiting.join(10)
    assert failures


def test_who_is_not_closed_does_no_harm_at_the_end(tmp_path: Path) -> None:
    """Its readers sleep in compiled code, and wake up when their pipes are closed."""
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGE_BYTES))
    program = f"""
import gc, os
from edgeinfer.jit.memory import paged
from edgeinfer.backends.cpu.catalogue import kernel_library
from edgeinfer.backends.cpu.lanes.compiled_slots import CompiledSlots, FilePlace
library = kernel_library()
descriptor = os.open({str(path)!r}, os.O_RDONLY)
slots = CompiledSlots(descriptor, [FilePlace(0, {PAGE_BYTES})], paged(1, {PAGE_BYTES}), 2, library)
slots.want([0], 1)
slots.settle([0])
del slots, library
gc.collect()
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
