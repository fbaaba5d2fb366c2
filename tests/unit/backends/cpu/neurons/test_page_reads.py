"""Reads in compiled code: the bytes that the file has, what its Python twin finds, and errors with their numbers."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.neurons.catalogue import READ_RECORDS
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.jit.memory import paged
from edgeinfer.offload.neurons.reads import CompiledReads, PageReads, SystemReads, read_each, system_reads

pytestmark = pytest.mark.skipif(system_reads() is None, reason="no C library to call")

PAGE, RECORD, BASE = 4096, 192, 2 * 4096
N_PAGES, N_SLOTS = 64, 500


@dataclass(frozen=True, slots=True)
class Disk:
    path: Path
    data: np.ndarray


@pytest.fixture
def compiled(library: KernelLibrary) -> CompiledReads:
    system = system_reads()
    assert system is not None
    return CompiledReads(library.function(READ_RECORDS), system)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    data = np.random.default_rng(1).integers(0, 256, BASE + N_PAGES * PAGE, dtype=np.uint8)
    path = tmp_path_factory.mktemp("pages") / "data"
    path.write_bytes(data.tobytes())
    return Disk(path, data)


def some_reads(memory: np.ndarray, count: int = 40) -> PageReads:
    """Reads of one to four pages with one to five records each, at random places; every slot is written once."""
    draw, reads, records = np.random.default_rng(3), list[tuple[int, ...]](), list[tuple[int, int]]()
    slots = iter(draw.permutation(N_SLOTS).tolist())
    for _ in range(count):
        n_pages, n_records = int(draw.integers(1, 5)), int(draw.integers(1, 6))
        first = int(draw.integers(0, N_PAGES - n_pages)) * PAGE
        reads.append((first, n_pages * PAGE, len(records), len(records) + n_records))
        places = draw.integers(0, n_pages * PAGE - RECORD, n_records).tolist()
        records += [(place, next(slots)) for place in places]
    return PageReads(np.array(reads), np.array(records), memory)


def expected(reads: PageReads, data: np.ndarray) -> np.ndarray:
    """What memory holds after all reads."""
    found = np.zeros((N_SLOTS, RECORD), np.uint8)
    for offset, _, first, stop, _ in reads.reads.tolist():
        for place, slot in reads.records[first:stop].tolist():
            start = BASE + offset + place
            found[slot] = data[start : start + RECORD]
    return found


@pytest.mark.parametrize("n_threads", [1, 5])
def test_records_come_from_their_places(compiled: CompiledReads, disk: Disk, n_threads: int) -> None:
    memory = np.zeros((N_SLOTS, RECORD), np.uint8)
    reads, descriptor = some_reads(memory), os.open(disk.path, os.O_RDONLY)

    def read() -> None:
        compiled(reads, paged(4 * PAGE), descriptor, BASE, PAGE)

    threads = [threading.Thread(target=read) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(descriptor)
    assert reads.failure is None
    assert np.array_equal(memory, expected(reads, disk.data))
    assert np.array_equal(reads.reads[:, 4], reads.reads[:, 1])


def test_the_twin_finds_the_same(disk: Disk) -> None:
    memory = np.zeros((N_SLOTS, RECORD), np.uint8)
    reads = some_reads(memory)

    def read_pages(offset: int, into: memoryview) -> None:
        into[:] = disk.data[BASE + offset : BASE + offset + len(into)].data

    read_each(reads, paged(4 * PAGE), read_pages)
    assert np.array_equal(memory, expected(reads, disk.data))


def test_short_reads_are_gone_on_with(compiled: CompiledReads) -> None:
    """Disks seldom do that, so functions that do are put in the place of the system's."""
    data = np.random.default_rng(5).integers(0, 256, BASE + N_PAGES * PAGE, dtype=np.uint8)
    kind = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong)
    asked: list[tuple[int, int]] = []

    @kind
    def few(_descriptor: int, memory: int, n_bytes: int, offset: int) -> int:
        asked.append((offset, n_bytes))
        if len(asked) % 7 == 3:
            error.value = errno.EINTR
            return -1
        count = min(n_bytes, PAGE + 100)
        ctypes.memmove(memory, data[offset:].ctypes.data, count)
        return count

    error = ctypes.c_int(0)

    @ctypes.CFUNCTYPE(ctypes.c_void_p)
    def error_at() -> int:
        return ctypes.addressof(error)

    addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in (few, error_at)]
    assert addresses[0] is not None
    assert addresses[1] is not None
    interrupted = CompiledReads(compiled._function, SystemReads(addresses[0], addresses[1]))
    memory = np.zeros((N_SLOTS, RECORD), np.uint8)
    reads = some_reads(memory)
    interrupted(reads, paged(4 * PAGE), 0, BASE, PAGE)
    assert reads.failure is None
    assert np.array_equal(memory, expected(reads, data))
    assert not any(offset % PAGE for offset, _ in asked)
    assert len(asked) > len(reads.reads)


def test_a_file_that_ends_early_is_told(compiled: CompiledReads, disk: Disk, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(disk.data[: BASE + 3 * PAGE + 10].tobytes())
    reads = PageReads(np.array([[2 * PAGE, 2 * PAGE, 0, 1]]), np.array([[0, 0]]), np.zeros((1, RECORD), np.uint8))
    descriptor = os.open(short, os.O_RDONLY)
    compiled(reads, paged(2 * PAGE), descriptor, BASE, PAGE)
    os.close(descriptor)
    failure = reads.failure
    assert failure is not None
    assert (failure.offset, failure.n_bytes, failure.n_read, failure.error) == (2 * PAGE, 2 * PAGE, PAGE, None)
    assert not reads.memory.any()


def test_an_error_has_its_number_and_ends_the_work_of_all(compiled: CompiledReads) -> None:
    memory = np.zeros((N_SLOTS, RECORD), np.uint8)
    reads, (out, into) = some_reads(memory), os.pipe()
    for _ in range(2):
        compiled(reads, paged(4 * PAGE), out, BASE, PAGE)  # a pipe has no places
    os.close(out)
    os.close(into)
    failure = reads.failure
    assert failure is not None
    assert failure.error == errno.ESPIPE
    assert reads.take() is None
    assert not memory.any()
