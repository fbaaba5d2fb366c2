"""Figures from hand-made runs, with results worked out by hand; bytes per token, against sums over a tiny file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgeinfer.app.bench import figures, machine
from edgeinfer.app.bench.figures import TrafficBench
from edgeinfer.app.bench.machine import BenchMachine, MemoryBandwidth
from edgeinfer.app.bench.measurement import Ops, Record
from edgeinfer.app.bench.report import BenchModel, BenchOrigin, report_json, report_lines
from edgeinfer.app.bench.request import Case, ours
from edgeinfer.app.bench.rounds import CaseFailure, CaseResult, Sample
from edgeinfer.app.bench.subject import BenchReply, OpTime
from edgeinfer.engine.measure import idle
from edgeinfer.models.load import open_model
from tests.conftest import HEADS, KV_HEADS, LAYERS, WIDTH

DECODE = Case("decode", 100, 0, runs=3)
VERIFY = Case("verify", 4, 64, runs=2, counts=(1, 2, 4))


def sample(case: Case, name: str, seconds: dict[int, float], *, busy: bool = False, peak: int | None = None) -> Sample:
    reply = BenchReply(seconds, accepted_per_step=1.0, peak_rss_bytes=peak)
    return Sample(case, name, reply, 0.98, 0.97, busy, 0)


def decodes() -> CaseResult:
    """Ours at 100, 200, 400 tok/s, the peer at 50, 50, 200; the peer's last run disturbed."""
    runs = [("cpu", 1.0), ("peer", 2.0), ("cpu", 0.5), ("peer", 2.0), ("cpu", 0.25), ("peer", 0.5)]
    peaks = (None, 1000, None, 3000, None)
    samples = [
        sample(DECODE, name, {100: seconds}, peak=peak) for (name, seconds), peak in zip(runs[:-1], peaks, strict=True)
    ]
    samples.append(sample(DECODE, "peer", {100: 0.5}, busy=True))
    return CaseResult(tuple(samples), (CaseFailure(DECODE, "broken", "crashed (signal 11, SIGSEGV)"),))


def test_rows_hold_medians_ranges_flags_and_problems() -> None:
    found = {
        row.executor: row for row in figures.rows(decodes(), DECODE, ["cpu", "peer", "broken"], {}, MemoryBandwidth())
    }
    assert found["cpu"].tok_s == figures.Spread(200.0, 100.0, 400.0)
    assert (found["peer"].tok_s.median, found["peer"].busy_runs, found["cpu"].busy_runs) == (50.0, 1, 0)
    assert found["cpu"].accepted_per_step == 1.0
    assert found["broken"].problem == "crashed (signal 11, SIGSEGV)"
    assert found["broken"].tok_s == figures.Spread(None, None, None)
    assert found["cpu"].bytes_per_token is None


def test_ratios_are_of_neighbours_not_of_medians() -> None:
    (ratio,) = figures.ratios(decodes(), DECODE, "cpu", ["peer", "broken"])
    assert ratio.values == figures.Spread(2.0, 2.0, 4.0)
    assert (ratio.executor, ratio.against, ratio.n) == ("cpu", "peer", 100)


def test_the_share_of_bandwidth_is_bytes_times_rate_over_what_can_be_read() -> None:
    class Traffic:
        def bytes_per_token(self, test: str, n: int, depth: int) -> float:
            assert (test, n, depth) == ("decode", 100, 0)
            return 5e7

    traffic = {"cpu": Traffic()}
    (row,) = figures.rows(
        decodes(), DECODE, ["cpu"], traffic, MemoryBandwidth(read_bytes_s=2e10, model_read_bytes_s=4e10)
    )  # type: ignore[arg-type]
    assert row.bytes_per_token == 5e7
    assert row.share_of_bandwidth == pytest.approx(0.5)
    assert row.share_of_model_bandwidth == pytest.approx(0.25)


def test_the_cost_of_a_pass_is_taken_within_each_run() -> None:
    samples = (sample(VERIFY, "cpu", {1: 1.0, 2: 1.5, 4: 2.0}), sample(VERIFY, "cpu", {1: 2.0, 2: 2.0, 4: 3.0}))
    found = figures.rows(CaseResult(samples, ()), VERIFY, ["cpu"], {}, MemoryBandwidth())
    assert figures.verify_cost(found, "cpu") == {1: 1.0, 2: 1.25, 4: 1.75}
    assert {row.n: row.tok_s.median for row in found} == {1: 0.75, 2: pytest.approx(7 / 6), 4: pytest.approx(5 / 3)}


def test_a_start_has_seconds_and_no_rate() -> None:
    case = Case("start", 1, 0, runs=1)
    (row,) = figures.rows(CaseResult((sample(case, "cpu", {1: 0.5}),), ()), case, ["cpu"], {}, MemoryBandwidth())
    assert (row.tok_s.median, row.seconds.median) == (None, 0.5)


def test_answers_of_different_lengths_are_compared_by_rate() -> None:
    case = Case("chat", 64, 0, runs=1)
    samples = (sample(case, "cpu", {30: 1.0}), sample(case, "reference", {20: 2.0}))
    (ratio,) = figures.ratios(CaseResult(samples, ()), case, "cpu", ["reference"])
    assert ratio.values.median == 3.0


def record() -> Record:
    """A record with a bit of everything."""
    measured, first = decodes(), ours("cpu").name
    found = figures.rows(measured, DECODE, [first, "peer", "broken"], {}, MemoryBandwidth())
    machine = BenchMachine(
        "A CPU", 2, 1 << 34, "Linux 6", "3.11.0", MemoryBandwidth(("avx2",), "avx2", 2e10, "read_one_stream", 3e10)
    )
    times = (OpTime("MatMul", "product", 8, 3e-3, 1e-3, 60_000_000), OpTime("RMSNorm", "norm", 4, 1e-3, 0.0))
    compared = tuple(figures.ratios(measured, DECODE, first, ["peer"]))
    ops = (Ops("decode", 1, 0, times, {"launch_s": 2e-5, "barrier_s": 3e-7}, python_s=42e-6, clock_hz=3e9),)
    return Record(machine, 2, 0.99, 0.98, tuple(found), compared, {1: 1.0}, measured.samples, ops)


FACTS = BenchModel("tiny", "/models/tiny.gguf", "Q4_0", 1000)
ORIGIN = BenchOrigin("edgeinfer bench -m tiny.gguf", "2026-11-29", {"edgeinfer": "0.1.0"})


def test_the_json_has_the_keys_of_the_contract() -> None:
    data = json.loads(json.dumps(report_json(record(), FACTS, ORIGIN)))
    assert {"machine", "idle_before", "idle_after", "rows", "ratios", "verify_cost"} <= set(data)
    assert (data["command"], data["date"], data["versions"]) == (ORIGIN.command, ORIGIN.date, {"edgeinfer": "0.1.0"})
    assert data["memory"] == [{"executor": "peer", "peak_rss_bytes": 3000}]
    assert {"cpu", "cores", "features", "ram_bytes", "read_gb_s"} <= set(data["machine"])
    assert data["machine"]["read_gb_s"] == 20.0
    keys = {"test", "executor", "n", "depth", "tok_s", "bytes_per_token", "share_of_bandwidth", "accepted_per_step"}
    assert all(keys <= set(row) and set(row["tok_s"]) == {"median", "min", "max"} for row in data["rows"])
    assert {"test", "executor", "against", "median", "min", "max"} <= set(data["ratios"][0])
    assert data["verify_cost"] == {"1": 1.0}
    assert [run["executor"] for run in data["runs"]] == ["cpu", "peer"] * 3
    (ops,) = data["ops"]
    assert ops["times"][0]["share"] == pytest.approx(0.8)
    assert (ops["times"][0]["bytes_read"], ops["python_s"], ops["clock_hz"]) == (60_000_000, 42e-6, 3e9)
    assert ops["times"][0]["gb_s"] == pytest.approx(20.0)
    assert ops["times"][0]["cycles_per_byte"] == pytest.approx(0.3)
    assert ops["times"][1]["gb_s"] is None


def test_the_table_shows_the_same_numbers_and_says_what_went_wrong() -> None:
    shown = "\n".join(report_lines(record(), FACTS))
    for text in (
        "200.0",
        "(100.0 to 400.0)",
        "2.00×",
        "cpu than peer",
        "reads 20.0 GB/s, 30.0 GB/s of as much as the model",
        "80.0%",
        "5.000 ms",
        "a barrier 0.30 µs",
        "60.0  20.0        0.300",  # MB, GB/s of both threads, cycles a byte of one of them
        "in Python beside the ops: 42 µs",
    ):
        assert text in shown
    assert "note: decode, depth 0, broken: crashed (signal 11, SIGSEGV)" in shown
    assert "note: decode, depth 0, peer: 1 of its runs on a busy machine" in shown


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
