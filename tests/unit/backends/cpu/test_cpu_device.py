"""Opening the CPU device: cores, workers, instruction sets, and what a failed compile leaves behind."""

from __future__ import annotations

import platform
import threading
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.cpu.device import CpuDevice
from edgeinfer.errors import BadSetting, DeviceUnavailable, EngineClosed
from edgeinfer.graph.step import Batch, Step
from edgeinfer.jit import targets
from edgeinfer.jit.cpu import cpu_features
from edgeinfer.models.load import open_model
from tests.unit.backends.cpu.kernel_calls import USABLE, same_bits

LIMITS = Limits(128, 2, 64, 64)


def first_tokens(*tokens: int) -> Step:
    as_ints = np.array(tokens, np.int32)
    places, zeros = np.arange(len(tokens), dtype=np.int32), np.zeros(len(tokens), np.int32)
    batch = Batch(as_ints, zeros, places, places - 1, places)
    return Step(batch, zeros, places, zeros, np.array([[0, 1]], np.int32))


def test_fastest_set_that_the_features_allow() -> None:
    assert targets.choose(frozenset()) == "portable"
    assert targets.choose(frozenset({"avx2", "fma", "f16c"})) == "avx2"
    assert targets.choose(frozenset({"avx2", "fma", "f16c", "avxvnni"})) == "avxvnni"
    assert targets.choose(frozenset({"neon", "dotprod"})) == "neon"
    assert targets.choose(frozenset({"neon"})) == "portable"
    assert targets.choose(frozenset({"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vnni"})) == "avx512vnni"
    assert targets.choose(frozenset(targets.NEEDS["amx"])) == "amx"
    assert targets.choose(frozenset(), "portable") == "portable"
    with pytest.raises(BadSetting, match="edgeinfer has: amx, avx512fp16, avx512vnni, avxvnni, avx2, neon, portable"):
        targets.choose(frozenset(), "mmx")
    with pytest.raises(BadSetting, match="cannot run avx2: it has no avx2, f16c; use one of: portable"):
        targets.choose(frozenset({"fma"}), "avx2")


def test_a_cpu_that_cannot_convert_float16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr("edgeinfer.backends.cpu.device.cpu_features", lambda: frozenset({"sse4.2", "fma"}))
    with pytest.raises(DeviceUnavailable, match=r"no f16c instructions.*reference"):
        CpuDevice(DeviceOptions())
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert CpuDevice(DeviceOptions()).isa == "portable"


def test_forced_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in USABLE:
        monkeypatch.setenv("EDGEINFER_SIMD", name)
        assert CpuDevice(DeviceOptions()).isa == name
    monkeypatch.delenv("EDGEINFER_SIMD")
    assert CpuDevice(DeviceOptions()).isa == targets.choose(cpu_features())


def test_cores_and_workers() -> None:
    device = CpuDevice(DeviceOptions())
    first = device.cores[0]
    assert CpuDevice(DeviceOptions(n_workers=3)).n_workers == 3
    assert CpuDevice(DeviceOptions(n_workers=3, cores=(first,))).cores == (first,)
    assert CpuDevice(DeviceOptions(cores=(first,))).cores == (first,)
    for options, message in (
        (DeviceOptions(n_workers=0), "0 threads"),
        (DeviceOptions(n_workers=-1), "-1 threads"),
        (DeviceOptions(n_workers=300), "300 threads"),
        (DeviceOptions(cores=(99999,)), "core 99999 cannot be used here; this process may use"),
        (DeviceOptions(cores=()), "no core"),
    ):
        with pytest.raises(BadSetting, match=message):
            CpuDevice(options)


def test_a_failed_compile_leaves_no_threads(tiny_model: Path) -> None:
    def fail(what: str, done: int, total: int) -> None:
        raise RuntimeError("stop")

    with open_model(tiny_model) as model, pytest.raises(RuntimeError, match="stop"):
        CpuDevice(DeviceOptions(n_workers=3)).compile(model.spec, model.file, LIMITS, fail)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edgeinfer-")]


def test_a_lane_counts_its_memory_shows_its_values_and_closes(tiny_model: Path) -> None:
    with open_model(tiny_model, LIMITS.n_context) as model:
        seen: list[str] = []
        device = CpuDevice(DeviceOptions(n_workers=2))
        lane = device.compile(model.spec, model.file, LIMITS, lambda what, done, total: seen.append(what))
        assert set(seen) == {"packing weights", "preparing kernels"}
        assert lane.resident_bytes > model.spec.kv_bytes_per_token() * 128
        step, ops = first_tokens(1, 2, 3), []
        logits = lane.run(step).copy()
        assert same_bits(logits, lane.watch(step, ops.append).copy())
        assert ops == list(model.spec.ops())
        assert same_bits(lane.value("logits"), logits)
        assert lane.value("query").shape == (3, 64)
        lane.close()
        lane.close()
        with pytest.raises(EngineClosed, match="load it again"):
            lane.run(step)
