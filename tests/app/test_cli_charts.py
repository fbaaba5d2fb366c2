"""`bench --chart` and `plan --chart` as users run them: the file shows the figures that the command prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.bench import machine, measurement
from edgeinfer.app.bench.machine import MemoryBandwidth
from edgeinfer.app.cli import build_app
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.scheduling.machine.topology import read_topology
from tests.unit.app.charts.drawn import inside, texts
from tests.unit.scheduling import profiles


def run(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), [str(argument) for argument in arguments])


@pytest.fixture
def quick(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads no gigabytes and waits for no idle machine."""
    memory = MemoryBandwidth(("avx2",), "avx2", 2e9, "read_one_stream", 4e9)
    monkeypatch.setattr(machine, "read_memory", lambda cores, model_bytes: memory)
    monkeypatch.setattr(measurement, "idle_share", lambda: 1.0)


@pytest.mark.usefixtures("quick")
def test_a_chart_of_a_measurement_is_that_of_its_json(tiny_model: Path, tmp_path: Path) -> None:
    chart, kept, again = (tmp_path / name for name in ("a.svg", "kept.json", "b.svg"))
    how = ("--device", "reference", "--prompt-tokens", 8, "--gen", 4, "--runs", 2, "--against", "null")
    result = run("bench", "-m", tiny_model, *how, "--chart", chart, "--json")
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    assert {each["executor"] for each in data["memory"]} == {"reference", "null"}
    assert all(each["peak_rss_bytes"] > 20_000_000 for each in data["memory"])
    kept.write_text(result.stdout, encoding="utf-8")
    drawn = run("bench", "--from", kept, "--chart", again)
    assert drawn.exit_code == 0, drawn.output
    assert drawn.stdout == ""
    assert chart.read_text("utf-8") == again.read_text("utf-8")
    shown = texts(again.read_text("utf-8"))
    assert {"edgeinfer reference", "edgeinfer null", "8 tokens", "4 tokens"} <= set(shown)
    inside(again.read_text("utf-8"))


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--chart", "a.png"), 2, "give a name with .svg"),
        (("--from", "kept.json"), 2, "say into which file with --chart"),
        (("--from", "none.json", "--chart", "a.svg"), 1, "none.json cannot be read"),
    ],
    ids=["png", "no_chart", "no_file"],
)
def test_what_cannot_be_drawn_is_said_before_anything_is_measured(
    arguments: tuple[str, ...], code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measurement, "measure", None)
    result = run("bench", "-m", "no-such-model.gguf", *arguments)
    assert result.exit_code == code
    assert told in result.output
    assert not (tmp_path / "a.svg").exists()


@pytest.fixture
def probed(home: Path) -> None:
    """A machine that was measured before: 10 GB/s and 20 G multiply-adds/s."""
    measured = {"fingerprint": fingerprint_of(read_topology()), "measured": "2026-11-22 12:00 UTC", "idle_share": 1.0}
    ProfileStore().save(replace(profiles.machine(), **measured))


@pytest.mark.usefixtures("probed")
def test_a_plan_is_drawn_with_memory_passes_and_roofline(tiny_model: Path, tmp_path: Path) -> None:
    chart = tmp_path / "plan.svg"
    result = run("plan", "-m", tiny_model, "--ctx", 256, "--device", "cpu", "--chart", chart, "--json")
    assert result.exit_code == 0, result.output
    predicted = json.loads(result.stdout)["predicted"]
    svg = chart.read_text("utf-8")
    shown = texts(svg)
    titles = ("Memory, by part and place", "What the time of these passes is spent on")
    assert {*titles, "multiply-adds per byte read", "one token", "prompt", "8 drafted tokens"} <= set(shown)
    assert any(text.startswith("cpu: 10.0 GB/s, 20 G multiply-adds/s") for text in shown)
    assert any(text.startswith("A pass of one token: ") and predicted["bound_by"] in text for text in shown)
    assert f"answers {predicted['decode_tok_s']:.1f} tok/s" in " ".join(shown)
    inside(svg)


@pytest.mark.parametrize(
    ("machine_name", "schedule", "placed"),
    [
        pytest.param("rtx4060-laptop", "accelerator", "cuda", id="accelerator"),
        pytest.param("rtx4060-laptop", "rows", "cpu+cuda", id="both"),
        pytest.param("xeon-2node", "cpu", "cpu", id="cpu"),
    ],
)
def test_a_plan_for_another_machine_is_drawn(
    machine_name: str, schedule: str, placed: str, home: Path, tiny_model: Path, tmp_path: Path
) -> None:
    chart = tmp_path / "plan.svg"
    result = run("plan", "-m", tiny_model, "--machine", machine_name, "--schedule", schedule, "--chart", chart)
    assert result.exit_code == 0, result.output
    shown = texts(chart.read_text("utf-8"))
    assert any(text.startswith(f"{machine_name} (imagined)") for text in shown)
    inside(chart.read_text("utf-8"))
    assert set(placed.split("+")) <= set(shown), "each device has a row of its own"


@pytest.mark.usefixtures("probed")
def test_a_plan_that_does_not_fit_is_drawn_with_what_there_is_room_for(tiny_model: Path, tmp_path: Path) -> None:
    chart = tmp_path / "plan.svg"
    result = run("plan", "-m", tiny_model, "--machine", "raspberry-pi-5", "--ctx", 10**9, "--chart", chart)
    assert result.exit_code == 1
    shown = texts(chart.read_text("utf-8"))
    assert any(text.startswith("cannot be run: no: ") for text in shown)
    assert not any("Roofline" in text for text in shown)


def test_several_sequences_have_no_roofline_of_one(home: Path, tiny_model: Path, tmp_path: Path) -> None:
    chart = tmp_path / "plan.svg"
    result = run("plan", "-m", tiny_model, "--machine", "rtx4060-laptop", "--batch", 4, "--chart", chart)
    assert result.exit_code == 0, result.output
    assert not any("Roofline" in text for text in texts(chart.read_text("utf-8")))
