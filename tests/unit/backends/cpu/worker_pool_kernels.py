"""Kernels for tests of tapes and worker pools: workers that are late on purpose, and readers of what others wrote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.cpu.kernels.work_split import share_start, size
from edgeinfer.backends.cpu.workers.tape import Call, Tape
from edgeinfer.jit import simd
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.library import KernelLibrary

ARGUMENTS = np.dtype([("number", "i8"), ("cells", "i8"), ("seen", "i8"), ("late", "i8"), ("pauses", "i8")])
arguments_at = simd.record_at(ARGUMENTS)


def write_cell(pointer, worker, work_split):
    """cells[worker] = number + worker, the late worker after some pauses."""
    args = arguments_at(pointer)
    if worker == args.late:
        for _ in range(args.pauses):
            simd.pause()
    simd.store_int64(args.cells + 8 * worker, simd.load_int64(args.number) + worker)


def read_next_cell(pointer, worker, work_split):
    """seen[worker] = the cell of the worker after this one, less that worker's number; seen[64 + worker] = pool."""
    args = arguments_at(pointer)
    other = (worker + 1) % size(work_split)
    simd.store_int64(args.seen + 8 * worker, simd.load_int64(args.cells + 8 * other) - other)
    simd.store_int64(args.seen + 512 + 8 * worker, size(work_split))


WRITE = Kernel("test-write-cell", lambda: write_cell, ARGUMENTS)
READ = Kernel("test-read-next-cell", lambda: read_next_cell, ARGUMENTS)


@dataclass(slots=True)
class Cells:
    """Memory of one tape: each worker writes its cell, then reads the next worker's."""

    number: NDArray[np.int64]
    cells: NDArray[np.int64]
    seen: NDArray[np.int64]
    arguments: NDArray[np.void]

    @classmethod
    def new(cls, late: int = -1, pauses: int = 0) -> Cells:
        number, cells, seen = np.zeros(1, np.int64), np.zeros(64, np.int64), np.zeros(128, np.int64)
        arguments = np.zeros(1, ARGUMENTS)
        arguments["number"], arguments["cells"] = number.ctypes.data, cells.ctypes.data
        arguments["seen"], arguments["late"], arguments["pauses"] = seen.ctypes.data, late, pauses
        return cls(number, cells, seen, arguments)

    def tape(self, library: KernelLibrary, rounds: int = 1) -> Tape:
        """Writes and reads by turns, `rounds` times."""
        cells, seen = frozenset({"cells"}), frozenset({"seen"})
        calls = [
            Call(WRITE, self.arguments, frozenset(), cells, "by worker"),
            Call(READ, self.arguments, cells, seen, "by next worker"),
        ]
        return Tape(calls * rounds, library)

    def right(self, worker_pool: int) -> bool:
        """Whether every worker of a worker pool saw what its neighbour wrote in the last run."""
        return bool(
            np.all(self.seen[:worker_pool] == self.number[0])
            and np.all(self.seen[64 : 64 + worker_pool] == worker_pool)
        )


ITEMS_ARGUMENTS = np.dtype([("owner", "i8"), ("count", "i8"), ("pauses", "i8")])
items_at = simd.record_at(ITEMS_ARGUMENTS)


def own_items(pointer, worker, work_split):
    """owner[item] = worker for the items of the worker's share, with pauses at each."""
    args = items_at(pointer)
    for item in range(share_start(work_split, worker, args.count), share_start(work_split, worker + 1, args.count)):
        simd.store_int64(args.owner + 8 * item, worker)
        for _ in range(args.pauses):
            simd.pause()


OWN = Kernel("test-own-items", lambda: own_items, ITEMS_ARGUMENTS)


@dataclass(slots=True)
class Items:
    """Memory of one tape: items that say which worker's share they were."""

    owner: NDArray[np.int64]
    arguments: NDArray[np.void]

    @classmethod
    def new(cls, count: int, pauses: int = 0) -> Items:
        owner, arguments = np.full(count, -1, np.int64), np.zeros(1, ITEMS_ARGUMENTS)
        arguments["owner"], arguments["count"], arguments["pauses"] = owner.ctypes.data, count, pauses
        return cls(owner, arguments)

    def tape(self, library: KernelLibrary) -> Tape:
        """One call."""
        return Tape([Call(OWN, self.arguments, frozenset(), frozenset({"owner"}), "by item")], library)
