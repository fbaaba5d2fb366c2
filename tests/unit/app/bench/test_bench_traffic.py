"""Bytes per token, against sums over the tensors of a tiny file; idle shares; the machine's own words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgeinfer.app.bench import machine
from edgeinfer.app.bench.machine import MemoryBandwidth
from edgeinfer.app.bench.traffic import TrafficBench
from edgeinfer.engine.measure import idle
from edgeinfer.models.load import open_model
from tests.conftest import HEADS, KV_HEADS, LAYERS, WIDTH

CONTEXT = 1200
KV_TOKEN_BYTES = 2 * LAYERS * KV_HEADS * (WIDTH // HEADS) * 4  # the reference device caches float32


@pytest.fixture
def traffic(tiny_model: Path) -> TrafficBench:
    with open_model(tiny_model, CONTEXT) as model:
        return TrafficBench.of("reference", model.spec, model.file.tensors, CONTEXT)


def test_a_decoded_token_reads_all_weights_and_what_is_cached(traffic: TrafficBench) -> None:
    weights = traffic.footprint.weight_bytes
    assert traffic.footprint.kv_bytes_per_token == KV_TOKEN_BYTES
    assert traffic.bytes_per_token("decode", 1, 0) == weights + KV_TOKEN_BYTES
    assert traffic.bytes_per_token("decode", 3, 100) == weights + 102 * KV_TOKEN_BYTES  # 101, 102 and 103


def test_a_pass_reads_its_weights_once(traffic: TrafficBench) -> None:
    weights = traffic.footprint.weight_bytes
    assert traffic.bytes_per_token("verify", 4, 10) == (weights + 14 * KV_TOKEN_BYTES) / 4
    three_passes = (3 * weights + (256 + 512 + 600) * KV_TOKEN_BYTES) / 600
    assert traffic.bytes_per_token("prefill", 600, 0) == pytest.approx(three_passes)
    assert traffic.bytes_per_token("start", 1, 0) is None


@pytest.mark.parametrize(
    ("idle_share", "threads", "cpus", "cores", "busy"),
    [
        (1.0, 2, 2, 2, False),
        (0.91, 2, 2, 2, False),
        (0.89, 2, 2, 2, True),
        (0.5, 1, 2, 2, False),  # the other core may be busy
        (0.4, 1, 2, 2, True),
        (0.6, 4, 8, 4, True),  # a core counts with both its threads
        (0.95, 4, 8, 4, False),
        (0.95, 16, 8, 4, False),
    ],
)
def test_busy_means_that_a_run_lacks_cores(
    monkeypatch: pytest.MonkeyPatch, idle_share: float, threads: int, cpus: int, cores: int, busy: bool
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: cpus if logical else cores)
    assert idle.is_busy(idle_share, threads) is busy


def test_the_idle_share_counts_waiting_for_disks_and_not_guests_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("user", "system", "idle", "iowait", "steal", "guest")
    readings = iter([(0, 0, 0, 0, 0, 0), (20, 5, 60, 5, 10, 10)])

    def cpu_times() -> SimpleNamespace:
        return SimpleNamespace(_fields=names, **dict(zip(names, next(readings), strict=True)))

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    monkeypatch.setattr(idle, "SETTLE_S", 0)
    monkeypatch.setattr(idle, "WINDOW_S", 0)
    assert idle.idle_share() == 0.65


def test_memory_is_read_again_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, shares = iter([1e9, 3e9, 2e9]), iter([1.0, 0.5, 0.5, 0.5])
    monkeypatch.setattr(machine, "read_memory", lambda cores, model_bytes: MemoryBandwidth(read_bytes_s=next(rates)))
    found = machine.read_quietly((0,), 1, lambda: next(shares), lambda share: share < 0.9)
    assert (found.read_bytes_s, found.busy) == (3e9, True)
    rates, shares = iter([1e9, 3e9]), iter([1.0, 0.5, 1.0, 1.0, 1.0])
    found = machine.read_quietly((0,), 1, lambda: next(shares), lambda share: share < 0.4)
    assert (found.read_bytes_s, found.busy) == (1e9, False)
