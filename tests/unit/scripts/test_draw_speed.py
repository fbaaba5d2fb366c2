"""The README's chart is what its script draws from the kept results, and every kept result says how it came about."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgeinfer.app.bench.chart import bench_page
from edgeinfer.app.bench.kept import read_bench
from scripts import draw_speed
from tests.unit.app.charts.drawn import inside, texts

KEPT = sorted(draw_speed.KEPT.glob("*.json"))


def drawn(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["draw_speed.py", *map(str, arguments)])
    return draw_speed.main()


def test_the_chart_is_that_of_the_kept_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "new" / "speed.svg"
    assert drawn(monkeypatch, "--out", out) == 0
    svg = out.read_text("utf-8")
    assert svg == draw_speed.OUT.read_text("utf-8"), "python scripts/draw_speed.py draws it again"
    inside(svg)
    shown = texts(svg)
    for name in (*draw_speed.ANSWERS, *draw_speed.PROMPTS):
        bench = read_bench(draw_speed.KEPT / f"{name}.json")
        assert any(bench.cpu in text and bench.date in text and bench.quant in text for text in shown)


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_a_kept_result_says_how_it_came_about_and_can_be_drawn(path: Path) -> None:
    bench = read_bench(path)
    assert bench.command.startswith("edgeinfer bench ")
    assert bench.date
    assert path.name.startswith(bench.date)
    assert bench.cpu
    assert bench.threads
    assert not any(row.busy_runs for row in bench.rows)
    others = {ratio.against for ratio in bench.ratios}
    assert others <= {name for name, _ in bench.versions}
    inside(bench_page(bench).svg())


def test_given_results_are_drawn_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, out = draw_speed.KEPT / "2026-11-22-xeon-amx-1b-q4_0.json", tmp_path / "one.svg"
    assert drawn(monkeypatch, kept, "--out", out) == 0
    assert {"452 tok/s", "45.3 tok/s"} <= set(texts(out.read_text("utf-8")))
