"""Prompts read in blocks with a budget: the CPU device chooses and computes what the reference does, in any passes."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.backends.base import Device, DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.backends.reference import ReferenceDevice
from edgeinfer.graph.step import PAGE, Batch, Step, whole_blocks
from edgeinfer.models.load import open_model
from edgeinfer.settings import KVKind
from tests.conftest import write_tiny_llama
from tests.golden.goldens import distance
from tests.golden.replay import RecordingDevice, Replay

Floats = NDArray[np.float32]
N_TOKENS, BUDGET = 9 * PAGE + 20, 4 * PAGE
N_PAGES = 10


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama with a context of 640."""
    return write_tiny_llama(tmp_path_factory.mktemp("blocks") / "long.gguf", context=N_PAGES * PAGE)


def played(device: Device, model: Path, passes: list[int], budget: int | None, kv: KVKind = "f16") -> Floats:
    """Logits of all tokens of a text, read in these passes; pages lie in no order."""
    tokens = np.random.default_rng(5).integers(4, 260, N_TOKENS).astype(np.int32)
    table = np.random.default_rng(7).permutation(N_PAGES).astype(np.int32)
    found = []
    with open_model(model, N_PAGES * PAGE, block_budget=budget) as opened:
        lane = device.compile(opened.spec, opened.file, Limits(N_PAGES * PAGE, N_PAGES, 256, 256, kv=kv))
        start = 0
        for count in passes:
            order, places = np.arange(count, dtype=np.int32), np.arange(start, start + count, dtype=np.int32)
            zeros = np.zeros(count, np.int32)
            given, blocks = tokens[start : start + count], whole_blocks(start, count)
            batch = Batch(given, zeros, places, order - 1, order, blocks=blocks)
            slots = table[places // PAGE] * PAGE + places % PAGE
            found.append(lane.run(Step(batch, zeros, slots, np.full(count, start, np.int32), table[None])).copy())
            start += count
        lane.close()
    assert start == N_TOKENS
    return np.concatenate(found)


IN_BLOCKS = [256, 256, N_TOKENS - 512]


@pytest.mark.parametrize("kv", get_args(KVKind))
def test_the_cpu_device_equals_the_reference(long_model: Path, kv: KVKind) -> None:
    replay = Replay()
    logits = played(RecordingDevice(CpuDevice(DeviceOptions(n_workers=2)), replay), long_model, IN_BLOCKS, BUDGET, kv)
    expected = played(ReferenceDevice("int8", kv, replay.rounding), long_model, IN_BLOCKS, BUDGET)
    assert replay.is_used_up
    assert distance(logits, expected) < 1e-5


def test_passes_of_whole_blocks_do_not_change_a_bit(long_model: Path) -> None:
    device = CpuDevice(DeviceOptions(n_workers=3))
    plain = played(device, long_model, IN_BLOCKS, BUDGET)
    for passes in ([64] * 9 + [20], [128, 192, 64, 192, 20], [256, 192, 128, 20]):
        assert played(device, long_model, passes, BUDGET).tobytes() == plain.tobytes()


def test_a_budget_for_the_whole_context_changes_no_bit(long_model: Path) -> None:
    device = CpuDevice(DeviceOptions(n_workers=2))
    exact = played(device, long_model, IN_BLOCKS, None)
    assert played(device, long_model, IN_BLOCKS, N_PAGES * PAGE).tobytes() == exact.tobytes()
    within = played(device, long_model, IN_BLOCKS, BUDGET)
    assert within[:BUDGET].tobytes() == exact[:BUDGET].tobytes()
    assert within[BUDGET + PAGE :].tobytes() != exact[BUDGET + PAGE :].tobytes()


def test_tokens_outside_of_whole_blocks_see_everything(long_model: Path) -> None:
    device, passes = CpuDevice(DeviceOptions(n_workers=2)), [63] * 9 + [N_TOKENS - 63 * 9]
    assert played(device, long_model, passes, BUDGET).tobytes() == played(device, long_model, passes, None).tobytes()
