"""The bits of the logits whatever the work split: uneven shares, empty ones, some of the workers, one that is slow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import WHOLE, DeviceOptions, Limits, WorkSplit
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.cpu.lanes.lane import CpuLane, LaneResources
from edgeinfer.backends.cpu.workers.worker_pool import WorkerPool
from edgeinfer.engine.run.executor import Executor
from edgeinfer.graph.step import Batch
from edgeinfer.models.load import open_model
from edgeinfer.steps import no_progress
from tests.golden.goldens import Golden, Player

NAMES = ("llama-k", "qwen3-q4_0", "gemma2-k", "phi3-f16", "gemma4-small-q8_0", "gemma3n-q8_0")
WORK_SPLITS = (
    WorkSplit((0, 1, 2), (0, WHOLE // 10, WHOLE // 2, WHOLE)),
    WorkSplit((0, 1, 2), (0, WHOLE * 97 // 100, WHOLE * 98 // 100, WHOLE)),
    WorkSplit((0, 1, 2), (0, 0, 0, WHOLE)),
    WorkSplit((0, 1, 2), (0, 0, WHOLE, WHOLE)),
    WorkSplit((1, 2), (0, WHOLE // 3, WHOLE)),
    WorkSplit((2,), (0, WHOLE)),
    WorkSplit((0,), (0, WHOLE), pinned=False),
)


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice(DeviceOptions(n_workers=3))
    yield opened
    opened.close()


def played(device: CpuDevice, golden: Golden, work_splits: tuple[WorkSplit, ...]) -> bytes:
    """Logits of a long pass, a tree and tokens one by one, with work splits in turn."""
    parts = []
    with Player(device, golden) as player:
        assert isinstance(player.lane, CpuLane)
        turns = iter(range(100))

        def next_work_split() -> None:
            player.lane.work_split = work_splits[next(turns) % len(work_splits)]  # type: ignore[attr-defined]

        next_work_split()
        parts.append(player.feed(golden.tokens[:60]))
        next_work_split()
        parts.append(player.look(golden.tokens[60:66], [-1, 0, 0, 1, 1, 2]))
        for token in range(60, 68):
            next_work_split()
            parts.append(player.feed(golden.tokens[token : token + 1]))
    return np.concatenate(parts).tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_work_split_changes_no_bit(device: CpuDevice, name: str) -> None:
    golden = Golden.read(name)
    expected = played(device, golden, (WorkSplit.even(3),))
    for work_split in WORK_SPLITS:
        assert played(device, golden, (work_split,)) == expected, work_split
    assert played(device, golden, WORK_SPLITS) == expected


def decoded(device: CpuDevice, golden: Golden, options: DeviceOptions, slowness: float) -> tuple[bytes, set[WorkSplit]]:
    """Logits of an executor's prompt and tokens, and the work splits that computed them."""
    limits = Limits(golden.n_context, 8)
    tokens = golden.tokens
    with open_model(golden.model, golden.n_context) as model:
        worker_pool = WorkerPool(2, device.cores, device.library)
        worker_pool.slow_down(1, slowness)
        resources = LaneResources(worker_pool, device.library, device.isa)
        lane = CpuLane(model.spec, model.file, limits, resources, no_progress)
        logits, work_splits = [], set()
        with Executor(device, lane, limits, "golden", options) as executor:
            for _ in range(12):
                sequence = executor.create()
                for start, stop in [(0, 32), *((place, place + 1) for place in range(32, 44))]:
                    logits.append(executor.evaluate(chain(sequence, start, tokens[start:stop])).copy())
                    executor.commit(sequence, np.arange(stop - start, dtype=np.int32))
                    work_splits.add(lane.work_split)
                executor.free(sequence)
    return np.concatenate(logits).tobytes(), work_splits


def chain(sequence: int, start: int, tokens: NDArray[np.int32]) -> Batch:
    order = np.arange(len(tokens), dtype=np.int32)
    return Batch(tokens, np.full(len(tokens), sequence, np.int32), order + np.int32(start), order - 1, order)


def test_adapting_changes_no_bit() -> None:
    """One worker takes three times as long, so that the shares do change."""
    golden = Golden.read("llama-k")
    device = CpuDevice(DeviceOptions(n_workers=2))
    expected, fixed = decoded(device, golden, DeviceOptions(adapts=False), 1.0)
    adapted, work_splits = decoded(device, golden, DeviceOptions(), 3.0)
    assert fixed == {WorkSplit.even(2)}
    assert len(work_splits) > 1
    assert adapted == expected
