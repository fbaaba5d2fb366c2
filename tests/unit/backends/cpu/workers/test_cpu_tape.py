"""Where a tape puts its barriers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.cpu.layout.records import PRODUCT
from edgeinfer.backends.cpu.workers.tape import Call, Tape
from edgeinfer.backends.cpu.workers.worker_pool import WorkerPool
from edgeinfer.jit.code import Kernel
from edgeinfer.jit.library import KernelLibrary
from tests.unit.backends.cpu.worker_pool_kernels import Cells

NOTHING = Kernel("nothing", lambda: lambda pointer, worker, work_split: None, np.dtype([("unused", "i8")]))


class Addresses(KernelLibrary):
    """A library that compiles nothing."""

    def address(self, kernel: Kernel) -> int:
        return 1 + len(kernel.name)


def call(reads: str, writes: str, share: str, gathers: str = "") -> Call:
    record = np.zeros(1, NOTHING.arguments)
    return Call(NOTHING, record, frozenset(reads), frozenset(writes), share, frozenset(gathers))


def waits(*calls: Call) -> list[int]:
    """Which calls have a barrier before them; the last entry ends the run."""
    tape = Tape(list(calls), Addresses(Path()))
    assert tape.n_barriers == tape.entries[:, 2].sum()
    return [int(flag) for flag in tape.entries[:, 2]]


ROWS, COLUMNS = "by rows", "by columns"


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (call("b", "c", COLUMNS), 1),  # reads what was written
        (call("b", "c", ROWS), 0),  # reads the same share of it
        (call("c", "a", COLUMNS), 1),  # overwrites what was read
        (call("c", "a", ROWS), 0),
        (call("c", "b", COLUMNS), 1),  # overwrites what was written
        (call("c", "b", ROWS), 0),
        (call("a", "c", COLUMNS), 0),  # reads what was read
        (call("c", "d", COLUMNS), 0),  # has nothing to do with it
        (call("bc", "bc", ROWS), 0),
        (call("", "ab", COLUMNS), 1),
        (call("", "c", ROWS, gathers="b"), 1),  # reads all of what was written, whatever its own share
        (call("", "c", COLUMNS, gathers="b"), 1),
        (call("", "c", COLUMNS, gathers="a"), 0),
    ],
)
def test_two_calls(second: Call, expected: int) -> None:
    assert waits(call("a", "b", ROWS), second) == [0, expected, 1]


def test_hazards_outlast_calls_that_do_not_wait() -> None:
    assert waits(call("", "a", ROWS), call("", "b", ROWS), call("a", "c", COLUMNS)) == [0, 0, 1, 1]


def test_what_all_workers_read_is_not_overwritten() -> None:
    gather = call("", "b", ROWS, gathers="a")
    assert waits(gather, call("", "a", ROWS)) == [0, 1, 1]
    assert waits(gather, call("b", "c", ROWS), call("", "a", COLUMNS)) == [0, 0, 1, 1]
    assert waits(gather, call("", "c", ROWS, gathers="a")) == [0, 0, 1]


def test_a_barrier_settles_what_came_before_it() -> None:
    first, second = call("", "ab", ROWS), call("a", "c", COLUMNS)
    assert waits(first, second, call("b", "d", COLUMNS)) == [0, 1, 0, 1]
    assert waits(first, second, call("b", "c", ROWS)) == [0, 1, 1, 1]


def test_several_shares_of_one_buffer() -> None:
    assert waits(call("a", "b", ROWS), call("a", "c", COLUMNS), call("", "a", COLUMNS)) == [0, 0, 1, 1]


def test_an_empty_tape_only_ends() -> None:
    assert waits() == [1]


def test_entries_hold_addresses_of_kernels_and_records() -> None:
    calls = [call("a", "b", ROWS), call("b", "c", COLUMNS)]
    tape = Tape(calls, Addresses(Path()))
    assert tape.entries[:, 0].tolist() == [8, 8, 0]
    assert tape.entries[:2, 1].tolist() == [each.arguments.ctypes.data for each in calls]


def test_entries_name_the_product_that_comes_next() -> None:
    kernel = Kernel("product", NOTHING.load, PRODUCT)
    first, second = (Call(kernel, np.zeros(1, PRODUCT), frozenset(), frozenset(), ROWS) for _ in range(2))
    tape = Tape([call("a", "b", ROWS), first, call("b", "c", ROWS), call("c", "d", COLUMNS), second], Addresses(Path()))
    ahead = [first.arguments.ctypes.data] * 2 + [second.arguments.ctypes.data] * 3 + [0]
    assert tape.entries[:, 4].tolist() == ahead


@pytest.mark.parametrize("weights", [0, 4096])
@pytest.mark.parametrize("second", [1 << 10, 1 << 20])
def test_weights_that_are_not_there_yet_may_be_fetched(library: KernelLibrary, weights: int, second: int) -> None:
    """A layer read from disk has no address before it is there; the worker that waits asks for memory all the same."""
    product = np.zeros(1, PRODUCT)
    product["weights"], product["unit_bytes"], product["second"], product["n_units"] = weights, 1 << 16, second, 64
    cells = Cells.new(late=1, pauses=20_000)
    tape = cells.tape(library)
    tape.entries[:, 4] = product.ctypes.data
    with closing(WorkerPool(2, (), library)) as worker_pool:
        worker_pool.run(tape)
    assert cells.right(2)


def test_progress_counts_each_kernel_once() -> None:
    seen: list[tuple[int, int]] = []
    Tape([call("", "", ROWS)] * 3, Addresses(Path()), lambda what, done, total: seen.append((done, total)))
    assert seen == [(0, 1), (1, 1)]


def test_a_missing_barrier_shows(library: KernelLibrary) -> None:
    """The late worker's cell is read too early when the barrier is taken out, and never with it."""
    cells = Cells.new(late=1, pauses=20_000)
    with_barrier, without = cells.tape(library), cells.tape(library)
    assert with_barrier.entries[:, 2].tolist() == [0, 1, 1]
    without.entries[1, 2] = 0
    worker_pool = WorkerPool(2, (), library)
    try:
        outcomes: dict[bool, list[bool]] = {True: [], False: []}
        for _ in range(20):
            for barrier in (True, False):
                cells.number += 10
                worker_pool.run(with_barrier if barrier else without)
                outcomes[barrier].append(cells.right(2))
    finally:
        worker_pool.close()
    assert all(outcomes[True])
    assert not all(outcomes[False])
