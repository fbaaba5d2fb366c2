"""The profile of a step: who was busy, who waited for whom, and what nothing costs."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.base import WorkSplit
from edgeinfer.backends.capabilities import KernelTime
from edgeinfer.backends.cpu.workers.tape import Call
from edgeinfer.backends.cpu.workers.timing import op_times, overhead
from edgeinfer.backends.cpu.workers.worker_pool import CallTimes, WorkerPool
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.jit.library import KernelLibrary
from tests.unit.backends.cpu.worker_pool_kernels import READ, WRITE, Cells


def test_times_are_summed_by_kind_and_waits_belong_to_the_call_before() -> None:
    nothing: frozenset[str] = frozenset()
    write, read = (Call(kernel, np.zeros(1, kernel.arguments), nothing, nothing, "") for kernel in (WRITE, READ))
    norm = RMSNorm("x", "y", Weight("w", 0, 8, 8), 8, 1e-5)
    calls: list[tuple[Op, list[Call]]] = [(norm, [write]), (Add("x", "y", 8), [write, read]), (norm, [write])]
    busy = np.array([[1.0, 2, 3, 4, 0], [3, 2, 1, 0, 0]])
    waiting = np.array([[0, 8.0, 0, 6, 1], [0, 0, 0, 2, 5]])
    assert op_times(calls, CallTimes(waiting, busy)) == [
        KernelTime("RMSNorm", WRITE.name, 2 + 2, 4 + 3, 2),
        KernelTime("Add", WRITE.name, 2, 0, 1),
        KernelTime("Add", READ.name, 2, 4, 1),
    ]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_overhead_is_measured(library: KernelLibrary, n_workers: int) -> None:
    worker_pool = WorkerPool(n_workers, (), library)
    try:
        split = WorkSplit.even(n_workers)
        tries = (overhead(worker_pool, library, split, n_entries=200, runs=5) for _ in range(50))
        assert any(0 < found.call_s < found.launch_s < 10 for found in tries)  # other programs may spoil some
        cells = Cells.new()
        worker_pool.run(cells.tape(library))
        assert cells.right(n_workers)
    finally:
        worker_pool.close()
