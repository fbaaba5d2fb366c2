"""Figures: medians, ratios and costs from hand-made runs, with results worked out by hand."""

from __future__ import annotations

import json

import pytest

from edgeinfer.app.bench import figures
from edgeinfer.app.bench.cases import Case
from edgeinfer.app.bench.executors import ours
from edgeinfer.app.bench.machine import BenchMachine, MemoryBandwidth
from edgeinfer.app.bench.measurement import Ops, Record
from edgeinfer.app.bench.messages import BenchReply, OpTime
from edgeinfer.app.bench.record import BenchModel, as_json
from edgeinfer.app.bench.rounds import CaseFailure, CaseResult, Sample
from edgeinfer.app.bench.table import lines

DECODE = Case("decode", 100, 0, runs=3)
VERIFY = Case("verify", 4, 64, runs=2, counts=(1, 2, 4))


def sample(case: Case, name: str, seconds: dict[int, float], *, busy: bool = False) -> Sample:
    return Sample(case, name, BenchReply(seconds, accepted_per_step=1.0), 0.98, 0.97, busy, 0)


def decodes() -> CaseResult:
    """Ours at 100, 200, 400 tok/s, the peer at 50, 50, 200; the peer's last run disturbed."""
    runs = [("cpu", 1.0), ("peer", 2.0), ("cpu", 0.5), ("peer", 2.0), ("cpu", 0.25), ("peer", 0.5)]
    samples = [sample(DECODE, name, {100: seconds}) for name, seconds in runs[:-1]]
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
    times = (OpTime("MatMul", "product", 8, 3e-3, 1e-3), OpTime("RMSNorm", "norm", 4, 1e-3, 0.0))
    compared = tuple(figures.ratios(measured, DECODE, first, ["peer"]))
    ops = (Ops("decode", 1, 0, times, {"launch_s": 2e-5, "barrier_s": 3e-7}),)
    return Record(machine, 2, 0.99, 0.98, tuple(found), compared, {1: 1.0}, measured.samples, ops)


FACTS = BenchModel("tiny", "/models/tiny.gguf", "Q4_0", 1000)


def test_the_json_has_the_keys_of_the_contract() -> None:
    data = json.loads(json.dumps(as_json(record(), FACTS)))
    assert {"machine", "idle_before", "idle_after", "rows", "ratios", "verify_cost"} <= set(data)
    assert {"cpu", "cores", "features", "ram_bytes", "read_gb_s"} <= set(data["machine"])
    assert data["machine"]["read_gb_s"] == 20.0
    keys = {"test", "executor", "n", "depth", "tok_s", "bytes_per_token", "share_of_bandwidth", "accepted_per_step"}
    assert all(keys <= set(row) and set(row["tok_s"]) == {"median", "min", "max"} for row in data["rows"])
    assert {"test", "executor", "against", "median", "min", "max"} <= set(data["ratios"][0])
    assert data["verify_cost"] == {"1": 1.0}
    assert [run["executor"] for run in data["runs"]] == ["cpu", "peer"] * 3
    assert data["ops"][0]["times"][0]["share"] == pytest.approx(0.8)


def test_the_table_shows_the_same_numbers_and_says_what_went_wrong() -> None:
    shown = "\n".join(lines(record(), FACTS))
    for text in (
        "200.0",
        "(100.0 to 400.0)",
        "2.00×",
        "cpu than peer",
        "reads 20.0 GB/s, 30.0 GB/s of as much as the model",
        "80.0%",
        "5.000 ms",
        "a barrier 0.30 µs",
    ):
        assert text in shown
    assert "note: decode, depth 0, broken: crashed (signal 11, SIGSEGV)" in shown
    assert "note: decode, depth 0, peer: 1 of its runs on a busy machine" in shown
