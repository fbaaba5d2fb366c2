"""A benchmark's chart shows the figures of its JSON, of this version, of earlier ones, and of others with errors."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.app.bench.chart import bench_page, executor_name
from edgeinfer.app.bench.kept import kept_bench, read_bench
from edgeinfer.app.bench.origin import origin_of
from edgeinfer.app.bench.request import BenchExecutor
from edgeinfer.app.written_command import written_command
from edgeinfer.errors import BadSetting, EdgeInferError
from tests.unit.app.charts.drawn import inside, rects, texts


def row(test: str, executor: str, median: float | None, n: int = 128, **others: Any) -> dict[str, Any]:
    low, high = (None, None) if median is None else (median * 0.9, median * 1.1)
    spread = {"median": median, "min": low, "max": high}
    return {"test": test, "executor": executor, "n": n, "depth": 0, "tok_s": spread, "seconds": spread, **others}


BENCH: dict[str, Any] = {
    "command": "edgeinfer bench -m tiny.gguf",
    "date": "2026-11-29",
    "versions": {"edgeinfer": "0.1.0", "llama-cpp-python": "0.3.36"},
    "machine": {"cpu": "A CPU", "cores": 2, "isa": "avx2", "read_gb_s": 20.0},
    "model": {"name": "tiny", "quant": "Q4_0", "file_bytes": 90_000_000},
    "threads": 2,
    "idle_before": 0.99,
    "idle_after": 0.98,
    "rows": [
        row("prefill", "cpu", 900.0, 512),
        row("prefill", "llama-cpp-python", 300.0, 512),
        row("decode", "cpu", 200.0),
        row("decode", "llama-cpp-python", 50.0),
        row("decode", "openvino-genai", None, problem="crashed"),
        row("verify", "cpu", 200.0, 1, cost=1.0),
        row("verify", "cpu", 350.0, 2, cost=1.2),
        row("verify", "cpu", 500.0, 4, cost=1.6),
        row("start", "cpu", 0.8, 1, cold=False),
        row("start", "cpu", 7.0, 1, cold=True),
    ],
    "ratios": [
        {"test": "decode", "executor": "cpu", "against": "llama-cpp-python", "n": 128, "depth": 0, "median": 4.2}
    ],
    "memory": [{"executor": "cpu", "peak_rss_bytes": 250_000_000}],
    "drafting": {"rows": [{"group": "all", "way": "warm", "sampling": "chat", "speedup": 1.37}]},
}


def test_every_kind_of_figure_is_drawn_with_its_unit() -> None:
    svg = bench_page(kept_bench(BENCH)).svg()
    shown = texts(svg)
    for text in ("200 tok/s", "50 tok/s (ours 4.20×)", "900 tok/s", "0.80 s", "7 s", "1.37×", "250.0 MB", "90.0 MB"):
        assert text in shown
    assert shown.count("edgeinfer cpu") >= 5
    assert "llama.cpp" in shown
    for text in ("A CPU, 2 cores, avx2, memory read at 20.0 GB/s", "T(k) / T(1)", "k, tokens of a pass", "tok/s", "MB"):
        assert text in shown
    assert shown[-1] == "$ edgeinfer bench -m tiny.gguf"
    assert any("llama-cpp-python 0.3.36" in text and "2026-11-29" in text for text in shown)
    assert "nothing compiled yet" in shown
    inside(svg)


def test_each_engine_has_one_colour_and_bars_as_long_as_its_rates() -> None:
    svg = bench_page(kept_bench(BENCH)).svg()
    decode_ours, decode_theirs = rects(svg, "f0")[1][1], rects(svg, "f1")[1][1]
    assert decode_ours == pytest.approx(4 * decode_theirs, rel=0.01)


def test_a_result_of_an_earlier_version_is_drawn_too() -> None:
    earlier = {key: value for key, value in BENCH.items() if key in ("machine", "model", "threads", "rows")}
    shown = texts(bench_page(kept_bench(earlier)).svg())
    assert "200 tok/s" in shown
    assert not any(text.startswith("$") for text in shown)


def test_runs_on_a_busy_machine_and_where_figures_come_from_are_said() -> None:
    data = deepcopy(BENCH)
    data["rows"][0]["busy_runs"] = 3
    data["source"] = "docs/BENCHMARKS.md"
    shown = texts(bench_page(kept_bench(data)).svg())
    assert "3 runs on a busy machine: figures may be too low." in shown
    assert "Written down from docs/BENCHMARKS.md." in shown


@pytest.mark.parametrize("rows", [[], [row("decode", "cpu", None)]], ids=["none", "without_figures"])
def test_nothing_to_draw_is_an_error(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(EdgeInferError, match="no figure to draw"):
        bench_page(kept_bench({"rows": rows}))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[1]", "the file is no object"),
        ('{"rows": 3}', "rows of the file is no list"),
        ('{"rows": [3]}', "rows is no object"),
        ('{"rows": [{"test": 3}]}', "test of rows is no text"),
        ('{"rows": [{"test": "decode", "tok_s": {"median": "fast"}}]}', "median of tok_s is no number"),
        ('{"rows": [{"test": "decode", "n": 1.5, "tok_s": {"median": 3}}]}', "n of rows is no whole number"),
        ('{"rows": [{"test": "decode", "n": -1, "tok_s": {"median": 3}}]}', "n of rows is no whole number"),
        ('{"rows": [{"test": "decode", "tok_s": {"median": NaN}}]}', "median of tok_s is no number"),
        ('{"memory": [{"executor": "cpu", "peak_rss_bytes": true}]}', "peak_rss_bytes of memory is no number"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "is not JSON"),
    ],
    ids=["cut", "list", "rows", "row", "test", "word", "part", "negative", "nan", "bool", "deep", "bytes"],
)
def test_other_files_are_refused_and_say_where(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadSetting, match="expected what edgeinfer bench --json prints") as raised:
        read_bench(path)
    assert told in str(raised.value)


def test_a_kept_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(BENCH), encoding="utf-8")
    bench = read_bench(path)
    assert bench == kept_bench(BENCH)
    assert bench.executors == ("cpu", "llama-cpp-python")
    assert bench.memory == (("cpu", 250_000_000),)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cpu", "edgeinfer cpu"),
        ("cpu+openvino:gpu", "edgeinfer cpu+openvino:gpu"),
        ("openvino-genai", "OpenVINO GenAI"),
        ("python:/home/me/mine.py", "mine.py"),
        ("onnxruntime-genai:/home/me/folder", "ONNX Runtime GenAI"),
        ("mistralrs", "mistral.rs"),
        ("another", "another"),
    ],
)
def test_engines_are_called_what_people_call_them(name: str, shown: str) -> None:
    assert executor_name(name) == shown


def test_a_figure_is_signed_without_folders_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    arguments = [
        "bench",
        "-m",
        str(tmp_path / "a b.gguf"),
        "--json",
        "--chart",
        "out.svg",
        "--runs",
        "3",
        "--chart=x.svg",
    ]
    assert written_command(arguments) == "edgeinfer bench -m 'a b.gguf' --runs 3"
    against = written_command(["bench", "--against", f"python:{tmp_path}/mine.py"])
    assert against == "edgeinfer bench --against python:~/mine.py"


def test_the_versions_of_peers_are_kept_and_no_package_is_asked_for_a_device() -> None:
    origin = origin_of([BenchExecutor("cpu", "ours", "cpu"), BenchExecutor("numpy", "peer", "numpy")], ["bench"])
    assert set(origin.versions) == {"edgeinfer", "numpy"}
    assert origin_of([BenchExecutor("x", "peer", "no-such-package")], []).versions.keys() == {"edgeinfer"}
    assert len(origin.date) == 10
