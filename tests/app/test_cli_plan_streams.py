"""`edgeinfer plan --ram`: what `run` would keep in memory and read from disk, how fast, and when it is hopeless."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.engine.offload import bundle_room, weight_placement
from edgeinfer.engine.offload.weight_placement import WeightBudget, place_and_pack
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.load import spec_of
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES, RESERVE_SHARE
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.scheduling.prediction import Predictor
from tests.conftest import write_tiny_llama
from tests.golden.goldens import Golden
from tests.unit.scheduling.profiles import machine

RAM = 300_000
"""Less than the tiny model's weights, with room for a window."""


@pytest.fixture
def tiny(home: Path, tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf")


def measured(disk_bytes_s: float | None) -> None:
    """A machine that was measured before: 10 GB/s, 20 G multiply-adds/s, and a disk, unless that was left out."""
    disk = None if disk_bytes_s is None else Disk({4: Curve.level(disk_bytes_s)})
    known = {"fingerprint": fingerprint_of(read_topology()), "measured": "2026-11-22 12:00 UTC", "idle_share": 1.0}
    ProfileStore().save(replace(machine(), disk=disk, **known))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["plan", *arguments])


def planned(*arguments: str) -> dict[str, dict[str, object]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, dict[str, object]] = json.loads(result.stdout)
    return found


def test_the_plan_is_what_run_would_keep(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(1e6)
    found = planned("-m", str(tiny), "--ctx", "256", "--ram", str(RAM))["predicted"]
    monkeypatch.setattr(weight_placement, "_have_bundle_file", lambda *arguments: None)
    with GGUFFile.open(tiny) as file:
        spec = spec_of(file.metadata, file.tensors, 256)
        limits, (notice,) = place_and_pack(spec, file, "tiny", "0", limits_for(256), WeightBudget(RAM))
        need = memory_need("cpu", spec, file.tensors, limits)
    place = limits.stored
    assert place is not None
    assert (found["pinned_bytes"], found["window_bytes"]) == (place.pinned_bytes, place.window_bytes)
    assert found["n_readers"] == place.n_readers
    assert place.held_bytes <= RAM
    assert found["ram_bytes"] == place.held_bytes + need.kv_bytes + need.buffer_bytes + PROGRAM_BYTES
    assert f"{found['decode_tok_s']:.3g} tok/s at most" in notice


def test_a_pass_takes_as_long_as_the_disk_or_the_cores(tiny: Path) -> None:
    here = ("-m", str(tiny), "--ctx", "256", "--ram", str(RAM))
    with GGUFFile.open(tiny) as file:
        predictor = Predictor(machine(), work_of(spec_of(file.metadata, file.tensors, 256), file.tensors))
    measured(1e6)
    slow = planned(*here)["predicted"]
    disk_s = slow["flash_bytes_per_token"] / 1e6
    assert disk_s > predictor.prompt_s(255)
    assert slow["decode_tok_s"] == pytest.approx(1 / disk_s)
    assert slow["prefill_tok_s"] == pytest.approx(255 / disk_s)  # one chunk reads the streamed weights once
    assert slow["verify_cost"] == pytest.approx(1.0)
    assert slow["bound_by"] == slow["prefill_bound_by"] == "disk"
    measured(1e13)
    fast = planned(*here)["predicted"]
    assert fast["decode_tok_s"] == pytest.approx(1 / predictor.pass_s(1, 255))
    assert fast["bound_by"] != "disk"
    measured(slow["flash_bytes_per_token"] / predictor.pass_s(4, 255, 4))
    between = planned(*here)["predicted"]
    assert between["decode_tok_s"] == pytest.approx(1 / predictor.pass_s(4, 255, 4))
    assert between["verify_cost"] == pytest.approx(predictor.pass_s(8, 255, 8) / predictor.pass_s(4, 255, 4))


def test_too_little_memory_for_weights_is_a_plan_too(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(1e6)
    with GGUFFile.open(tiny) as file:
        limits = weight_placement.smaller_passes(limits_for(256), min(weight_placement.SMALLER_PASSES))
        need = memory_need("cpu", spec_of(file.metadata, file.tensors, 256), file.tensors, limits)
    available = int((need.total_bytes - 40_000) / (1 - RESERVE_SHARE))
    monkeypatch.setattr(weight_placement, "memory_for_model", lambda: available)
    found = planned("-m", str(tiny), "--ctx", "256")
    assert found["predicted"]["bound_by"] == "disk"
    assert found["predicted"]["ram_bytes"] <= available
    lanes = [lane for stage in found["stages"] if stage["ops"] == "blk.0.ffn_up" for lane in stage["lanes"]]
    assert [(lane["device"], lane["held"]) for lane in lanes] == [("cpu", None)] * 2


def test_experts_that_come_and_go_are_planned_for(home: Path) -> None:
    measured(1e6)
    model = Golden.read("qwen3moe-q4_0").model
    whole = planned("-m", str(model))["memory"]["weight_bytes"]
    found = planned("-m", str(model), "--ram", str(int(0.8 * whole)))["predicted"]
    assert found["cache_bytes"] > 0
    assert found["decode_tok_s"] == pytest.approx(1e6 / found["flash_bytes_per_token"], rel=1e-3)
    assert 1 < found["verify_cost"] < 8  # eight tokens want more experts than one
    assert "for experts" in run("-m", str(model), "--ram", str(int(0.8 * whole))).stdout


def test_people_are_told_what_stays_and_what_is_read(tiny: Path) -> None:
    measured(1e6)
    shown = run("-m", str(tiny), "--ram", str(RAM)).stdout
    assert "stay in memory" in shown
    assert "bound by disk" in shown
    assert "from disk" in next(line for line in shown.splitlines() if line.startswith("plan "))


def test_the_bundle_file_is_named_with_its_room(tiny: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(1e6)

    def bundle() -> str:
        shown = run("-m", str(tiny), "--ram", str(RAM)).stdout
        return next(line for line in shown.splitlines() if line.startswith("bundle "))

    assert re.search(r"\d kB, which the first run writes in .*bundles, where .* are free$", bundle())
    monkeypatch.setattr(bundle_room, "_free", lambda folder: 1000)
    assert "has no room: it needs" in bundle()
    assert CliRunner().invoke(build_app(), ["pack", str(tiny)]).exit_code == 0
    assert bundle().endswith(".bundles is there")
    assert not any(line.startswith("bundle ") for line in run("-m", str(tiny)).stdout.splitlines())


def test_without_a_measured_disk_nothing_is_predicted(tiny: Path) -> None:
    measured(None)
    found = planned("-m", str(tiny), "--ram", str(RAM))["predicted"]
    assert found["decode_tok_s"] is found["prefill_tok_s"] is found["ttft_s"] is None
    assert found["window_bytes"] > 0
    assert found["flash_bytes_per_token"] > 0
    shown = run("-m", str(tiny), "--ram", str(RAM)).stdout
    assert "the disk of this machine was not measured; edgeinfer probe does that" in shown


def test_enough_memory_for_weights_streams_nothing(tiny: Path) -> None:
    measured(1e6)
    found = planned("-m", str(tiny), "--ram", "1MB")["predicted"]
    assert found["flash_bytes_per_token"] == 0
    assert found["window_bytes"] is None
    assert found == planned("-m", str(tiny))["predicted"]


@pytest.mark.parametrize(
    ("disk_bytes_s", "ram", "words"),
    [(1e3, RAM, "s at 1e-06 GB/s"), (1e6, 100_000, "at least would work")],
)
def test_hopeless_plans_are_refused_with_the_number(tiny: Path, disk_bytes_s: float, ram: int, words: str) -> None:
    measured(disk_bytes_s)
    result = run("-m", str(tiny), "--ram", str(ram))
    assert result.exit_code == 1
    assert words in result.stderr
    assert "weights" in result.stdout
    assert "decode" not in result.stdout
    record = json.loads(run("-m", str(tiny), "--ram", str(ram), "--json").stdout)
    assert words in record["refused"]
    assert record["plan"] is record["predicted"]["decode_tok_s"] is None


def test_other_devices_stream_nothing(tiny: Path) -> None:
    result = run("-m", str(tiny), "--device", "reference", "--ram", str(RAM))
    assert result.exit_code == 1
    assert "--device cpu" in result.stderr


def test_another_machine_without_accelerators_keeps_the_same(tiny: Path) -> None:
    measured(1e6)
    here = planned("-m", str(tiny), "--ctx", "256", "--ram", str(RAM))["predicted"]
    there = planned("-m", str(tiny), "--ctx", "256", "--ram", str(RAM), "--machine", "raspberry-pi-5")
    assert there["predicted"]["flash_bytes_per_token"] == here["flash_bytes_per_token"]
    assert there["predicted"]["ram_bytes"] == here["ram_bytes"]  # one count of memory, whichever machine it is about
    assert there["fit"]["in_part"]
    assert "streams" in run("-m", str(tiny), "--ram", str(RAM), "--machine", "raspberry-pi-5").stdout


def test_the_budget_is_for_weights_on_a_machine_with_an_accelerator_too(tiny: Path) -> None:
    there = ("-m", str(tiny), "--ctx", "256", "--machine", "t4-xeon8", "--vram", "1")
    with GGUFFile.open(tiny) as file:
        work = work_of(spec_of(file.metadata, file.tensors, 256), file.tensors)
    assert planned(*there)["predicted"]["flash_bytes_per_token"] == 0
    for ram in (RAM, RAM // 3):
        found = planned(*there, "--ram", str(ram))["predicted"]
        assert found["flash_bytes_per_token"] == pytest.approx(work.weight_bytes - ram, rel=0.1)
