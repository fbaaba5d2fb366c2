"""One model has the same sizes in every command and on every screen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edgeinfer.app.catalogue.catalogue import ModelEntry
from edgeinfer.app.catalogue.forecast import forecast_of
from edgeinfer.app.catalogue.words import detail_lines
from edgeinfer.app.cli import build_app
from edgeinfer.app.doctor.checks import models
from edgeinfer.app.readings import Readings
from edgeinfer.engine.loading import load
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.text_values import size_text
from tests.conftest import write_tiny_llama
from tests.golden.goldens import DATA
from tests.unit.app.doctor.recorded_machine import machine_at

PARTS = ("weight_bytes", "kv_bytes", "buffer_bytes", "program_bytes")


@pytest.fixture
def tiny(home: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return write_tiny_llama(folder / "tiny.gguf")


def printed(*arguments: str) -> dict[str, dict[str, int]]:
    done = CliRunner().invoke(build_app(), [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("home")
def test_a_plan_is_what_an_answer_then_tells_and_the_machine_screen_shows(tiny: Path) -> None:
    here = ("-m", str(tiny), "--device", "reference")
    planned = printed("plan", *here)
    answered = printed("run", *here, "--max-tokens", "2", "hi")["memory"]
    assert {part: planned["memory"][part] for part in (*PARTS, "total_bytes")} == {
        part: answered[part] for part in (*PARTS, "total_bytes")
    }
    assert planned["memory"]["total_bytes"] == sum(answered[part] for part in PARTS)
    assert planned["predicted"]["ram_bytes"] == answered["total_bytes"]
    assert planned["model"]["file_bytes"] == tiny.stat().st_size
    with load(tiny, device="reference") as llm:
        shown = Readings(llm).memory()
    assert (shown.weight_bytes, shown.kv_bytes) == (answered["weight_bytes"], answered["kv_bytes"])
    assert shown.buffer_bytes == answered["buffer_bytes"]
    assert shown.kv_used_bytes == 0
    assert None not in (shown.process_bytes, shown.program_bytes, shown.weight_bytes, shown.buffer_bytes)
    parts = (shown.weight_bytes or 0) + (shown.buffer_bytes or 0) + (shown.program_bytes or 0)
    assert parts == shown.process_bytes


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("family", ["qwen35", "lfm2", "gemma3", "gpt-oss", "gemma4-small", "gemma3n"])
def test_windows_and_states_are_of_the_cache_on_the_machine_screen_too(family: str) -> None:
    path = DATA / f"{family}-q8_0.gguf"
    planned = printed("plan", "-m", str(path), "--device", "cpu", "--ctx", "4096")["memory"]
    with load(path, device="cpu", n_context=4096, spec="off") as llm:
        readings = Readings(llm, profile=lambda: None)
        shown = readings.memory()
        assert (shown.kv_bytes, shown.kv_used_bytes) == (planned["kv_bytes"], 0)
        assert shown.weight_bytes == pytest.approx(planned["weight_bytes"], rel=0.02)
        llm.complete([5 + n for n in range(200)], max_tokens=2).read()
        used = readings.memory().kv_used_bytes
        assert used is not None
        assert shown.kv_bytes is not None
        assert 0 < used < shown.kv_bytes
        assert readings.taken()[1] == used


def test_doctor_and_the_models_screen_say_what_a_plan_says(tiny: Path, tmp_path: Path) -> None:
    planned = printed("plan", "-m", str(tiny), "--device", "cpu")["memory"]
    with GGUFFile.open(tiny) as file:
        found = forecast_of(file, tiny.stat().st_size, None, profile=None)
    assert found.ram_bytes == planned["total_bytes"]
    assert (found.weight_bytes, found.kv_bytes, found.buffer_bytes) == tuple(planned[part] for part in PARTS[:3])
    machine = machine_at(tmp_path)
    roomy = replace(machine.topology, total_bytes=64 << 30, available_bytes=32 << 30)
    (finding,) = models.judge(models.read(replace(machine, topology=roomy)))
    sizes = ", ".join(
        f"{name} {size_text(planned[part])}"
        for name, part in zip(("weights", "KV cache", "buffers", "program"), PARTS, strict=True)
    ).replace(", program", f" (drafts {size_text(planned['draft_bytes'])}), program")
    total = size_text(planned["total_bytes"])
    assert f"tiny takes {total} at a context of 512: {sizes}" in finding.message
    entry = ModelEntry("tiny", "file", None, tiny.stat().st_size, path=tiny)
    lines = detail_lines(entry, found)
    assert any(line.startswith(f"memory: {total} of ") and sizes in line for line in lines)
    assert f"file: {size_text(tiny.stat().st_size)}" in lines
    shown = CliRunner().invoke(build_app(), ["plan", "-m", str(tiny), "--device", "cpu"]).stdout
    assert f"memory    {total} of " in shown
    assert sizes in shown
