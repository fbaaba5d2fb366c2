"""The null device: counts of a pass against formulas, and models of hundreds of gigabytes that nothing ever reads."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from edgeinfer.app.plans.planning import PlanRequest
from edgeinfer.app.plans.record import PlannedModel
from edgeinfer.app.plans.streamed import planned_there
from edgeinfer.backends.base import DEVICES, DeviceOptions, Limits
from edgeinfer.backends.null import NullDevice, NullLane
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.offload.weight_placement import WeightBudget, planned_weights
from edgeinfer.engine.opening.devices import OpeningRequest
from edgeinfer.engine.opening.evaluator import open_executor
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.step import PAGE, Batch, Step
from edgeinfer.models.load import Model, open_model
from edgeinfer.models.work import pass_work
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.catalogue import machine_profile
from edgeinfer.scheduling.machine.profile import Curve, Disk
from tests.golden.goldens import Golden
from tests.unit.engine.run.test_executor import chain

WIDTH, HEADS, KV_HEADS, HEAD, FFN, LAYERS, VOCABULARY = 16384, 128, 8, 128, 53248, 126, 128256
"""Llama 3.1 405B."""
Q4_0_BITS = 4.5
MATRICES = (
    ("attn_q", HEADS * HEAD, WIDTH),
    ("attn_k", KV_HEADS * HEAD, WIDTH),
    ("attn_v", KV_HEADS * HEAD, WIDTH),
    ("attn_output", WIDTH, HEADS * HEAD),
    ("ffn_gate", FFN, WIDTH),
    ("ffn_up", FFN, WIDTH),
    ("ffn_down", WIDTH, FFN),
)


def write_huge(path: Path) -> Path:
    """A file of 228 GB that takes a few hundred KB of disk: everything after its header is a hole."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(131072)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    size = 0

    def matrix(name: str, rows: int, columns: int) -> None:
        nonlocal size
        row_bytes = int(columns * Q4_0_BITS / 8)
        kind = gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor_info(f"{name}.weight", (rows, row_bytes), np.dtype(np.uint8), rows * row_bytes, kind)
        size += rows * row_bytes

    def vector(name: str) -> None:
        nonlocal size
        writer.add_tensor_info(f"{name}.weight", (WIDTH,), np.dtype(np.float32), 4 * WIDTH)
        size += 4 * WIDTH

    matrix("token_embd", VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        for name, rows, columns in MATRICES:
            matrix(f"blk.{layer}.{name}", rows, columns)
        vector(f"blk.{layer}.attn_norm")
        vector(f"blk.{layer}.ffn_norm")
    vector("output_norm")
    matrix("output", VOCABULARY, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(-(-path.stat().st_size // 32) * 32 + size)
    return path


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    if sys.platform != "linux":
        pytest.skip("holes in files are taken for granted on Linux only")
    try:
        path = write_huge(tmp_path_factory.mktemp("huge") / "llama-405b.gguf")
    except OSError as reason:
        pytest.skip(f"this file system takes no file of 228 GB: {reason}")
    with open_model(path, 8192) as model:
        yield model
    path.unlink()


def test_a_pass_of_a_huge_model_is_counted(huge: Model) -> None:
    n_weights = LAYERS * sum(rows * columns for _, rows, columns in MATRICES) + VOCABULARY * WIDTH
    norm_bytes = 4 * WIDTH * (2 * LAYERS + 1)
    row_bytes = int(WIDTH * Q4_0_BITS / 8)
    work = pass_work(huge.spec, huge.file.tensors, n_tokens=1, n_cached=1000)
    assert work.weight_bytes == int(n_weights * Q4_0_BITS / 8) + norm_bytes + row_bytes
    assert work.kv_bytes == 2 * 2 * KV_HEADS * HEAD * 1001 * LAYERS
    assert work.multiply_adds == n_weights + LAYERS * 2 * HEADS * HEAD * 1001
    many = pass_work(huge.spec, huge.file.tensors, n_tokens=512, n_cached=0)
    assert many.weight_bytes == work.weight_bytes + 511 * row_bytes
    head = VOCABULARY * WIDTH
    assert many.multiply_adds == 512 * (n_weights - head) + head + LAYERS * 2 * HEADS * HEAD * (512 * 513 // 2)


def test_a_huge_model_runs_on_the_null_device_and_touches_no_weights(huge: Model) -> None:
    limits = Limits(8192, 8192 // PAGE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_executor("null", OpeningRequest(huge.spec, huge.file, limits), "huge") as executor:
        sequence = executor.create()
        for start in range(0, 2048, 256):
            logits = executor.evaluate(chain(sequence, start, [0] * 256))
            executor.commit(sequence, np.arange(256, dtype=np.int32))
        assert logits.shape == (1, VOCABULARY)
        assert executor.resident_bytes == 0
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 200_000


def test_every_device_says_what_a_huge_model_would_take(huge: Model) -> None:
    limits = Limits(8192, 8192 // PAGE)
    keys = DEVICES.keys()
    assert "cpu" in keys
    for key in keys:
        found = DEVICES.get(key).footprint(huge.spec, huge.file.tensors, limits)
        total = found.weight_bytes + found.kv_bytes + found.buffer_bytes
        assert total == 0 if key == "null" else total > 220e9
    packed = DEVICES.get("cpu").footprint(huge.spec, huge.file.tensors, limits)
    in_file = sum(info.nbytes for info in huge.file.tensors.values())
    assert 0.98 < packed.weight_bytes / in_file < 1.01  # panels are no larger than the file; the embedding stays in it


def test_a_huge_model_that_streams_is_planned_from_its_header(huge: Model) -> None:
    machine = machine_profile("xeon-2node")
    assert machine.disk is not None
    work, n_bytes = work_of(huge.spec, huge.file.tensors), sum(info.nbytes for info in huge.file.tensors.values())
    facts = PlannedModel(huge.spec, work, n_bytes, n_bytes, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    planned = planned_there(machine, "405B", huge.file, facts, PlanRequest(n_context=8192, ram_bytes=64 * 10**9))
    kept = planned.kept
    assert kept is not None
    assert kept.held_bytes <= 64e9 < kept.held_bytes + 8e6
    assert kept.flash_bytes + kept.pinned_bytes == pytest.approx(work.weight_bytes, rel=0.01)
    assert planned.decode_tok_s == pytest.approx(machine.disk.best_bytes_s / kept.flash_bytes, rel=1e-3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB: no weights were touched
    limits, slow = limits_for(8192), Disk({1: Curve.level(1e9)})
    with pytest.raises(DoesNotFit, match=r"s at .* GB/s; a smaller model .* more memory"):
        planned_weights(huge.spec, huge.file, "405B", limits, WeightBudget(64 * 10**9), slow, 10**11)


def test_work_adds_up_over_steps() -> None:
    golden = Golden.read("mistral-window-q8_0")
    with open_model(golden.model, 128) as model:
        lane = NullDevice().compile(model.spec, model.file, Limits(128, 2))
        assert isinstance(lane, NullLane)
        ints = np.arange(3, dtype=np.int32)
        batch = Batch(ints, ints * 0, ints + 20, ints - 1, ints[2:])
        step = Step(batch, ints * 0, ints + 20, ints * 0 + 20, np.zeros((1, 1), np.int32))
        assert lane.run(step).shape == (1, model.spec.n_vocab)
        lane.run(step)
        once = pass_work(model.spec, model.file.tensors, 3, 20)
        assert lane.work == once + once
        windowed = 2 * (2 * 2 * 2 * 16) * (12 + 3)  # two layers of two kv heads, float16 keys and values
        assert once.kv_bytes == windowed


def test_the_null_device_holds_nothing() -> None:
    device = DEVICES.get("null").open(DeviceOptions())
    golden = Golden.read("llama-q8_0")
    with open_model(golden.model, 128) as model:
        lane = device.compile(model.spec, model.file, Limits(128, 2))
        pages = np.zeros(3, np.int32)
        assert lane.read_pages(pages).shape == (3, 0)
        lane.write_pages(pages, lane.read_pages(pages))
        lane.copy_slots(pages, pages)
        assert lane.resident_bytes == 0
        lane.close()
    device.close()
