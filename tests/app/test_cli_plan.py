"""`edgeinfer plan`: sizes are exact, nothing is loaded, and what does not fit says by how much."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.app.plans.fit import check_fits, plan_for
from edgeinfer.app.plans.measured import SpeedLog
from edgeinfer.backends.base import DEVICES, DeviceOptions
from edgeinfer.engine.kv.limits import limits_for
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.engine.opening import device_choice
from edgeinfer.engine.opening.device_choice import Choices, DeviceChoice
from edgeinfer.engine.probing import combination
from edgeinfer.errors import DeviceUnavailable, DoesNotFit
from edgeinfer.models.file_facts import fingerprint
from edgeinfer.models.gguf import GGUFFile, parse_header
from edgeinfer.models.load import open_model, spec_of
from edgeinfer.scheduling.cost.seconds import Pass
from edgeinfer.scheduling.cost.work import work_of
from edgeinfer.scheduling.machine.catalogue import machine_names, machine_profile
from edgeinfer.scheduling.machine.profile import Link
from edgeinfer.scheduling.machine.topology import read_topology, usable_cores
from edgeinfer.scheduling.prediction import MeasuredSpeeds, Predictor
from tests.adapter_files import write_adapter
from tests.conftest import write_tiny_llama
from tests.unit.scheduling.profiles import device, machine


@pytest.fixture
def tiny(home: Path, tmp_path: Path) -> Path:
    """A tiny model, on a machine that was measured before: 10 GB/s and 20 G multiply-adds/s."""
    measured = {"fingerprint": fingerprint_of(read_topology()), "measured": "2026-11-22 12:00 UTC", "idle_share": 1.0}
    ProfileStore().save(replace(machine(), **measured))
    return write_tiny_llama(tmp_path / "tiny.gguf")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["plan", *arguments])


def test_json_has_the_contract_keys_exact_sizes_and_what_the_profile_predicts(tiny):
    result = run("-m", str(tiny), "--ctx", "256", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    with GGUFFile.open(tiny) as file:
        assert plan["model"]["weight_bytes"] == sum(info.nbytes for info in file.tensors.values())
        work = work_of(spec_of(file.metadata, file.tensors, 256), file.tensors)
    assert plan["model"]["arch"] == "llama"
    assert plan["model"]["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2  # layers, k and v, heads, width, bytes
    predicted, predictor = plan["predicted"], Predictor(machine(), work)
    assert predicted["decode_tok_s"] == pytest.approx(1 / predictor.pass_s(1, 255))
    assert predicted["ttft_s"] == pytest.approx(predictor.prompt_s(255))
    assert predicted["prefill_tok_s"] == pytest.approx(255 / predictor.prompt_s(255))
    assert predicted["verify_cost"] == pytest.approx(predictor.pass_s(8, 255, 8) / predictor.pass_s(1, 255))
    assert predicted["bound_by"] == predictor.seconds(Pass(1, 255)).largest
    assert predicted["vram_bytes"] == predicted["flash_bytes_per_token"] == 0
    assert plan["memory"]["n_context"] == 256
    assert plan["machine"] == "plain"
    stages = plan["stages"]
    assert {"phase", "ops", "lanes", "seconds"} <= set(stages[0])
    down = next(stage for stage in stages if stage["ops"] == "blk.1.ffn_down" and stage["phase"] == "decode")
    (lane,) = down["lanes"]
    assert (lane["device"], lane["rows"]) == ("cpu", [0, 64])
    decode_s = sum(stage["seconds"] for stage in stages if stage["phase"] == "decode")
    assert decode_s == pytest.approx(1 / predicted["decode_tok_s"])


def test_adapters_are_told_with_their_bytes(tiny, tmp_path):
    paths = [write_adapter(tiny, tmp_path / f"{rank}.gguf", rank=rank) for rank in (4, 8)]
    lora = ["--lora", f"{paths[0]}:0.5", "--lora", str(paths[1])]
    told = json.loads(run("-m", str(tiny), *lora, "--json").stdout)["model"]["adapters"]
    sizes = [sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors) for path in paths]
    assert told == [
        {"path": str(path), "scale": scale, "bytes": size}
        for path, scale, size in zip(paths, (0.5, 1.0), sizes, strict=True)
    ]
    assert f"{paths[0]} at scale 0.5" in run("-m", str(tiny), *lora).stdout
    assert json.loads(run("-m", str(tiny), "--json").stdout)["model"]["adapters"] == []


def test_what_was_measured_stands_beside_what_is_predicted(tiny):
    with GGUFFile.open(tiny) as file:
        here = fingerprint(file), "cpu", len(usable_cores())
        SpeedLog().record(*here, measured=MeasuredSpeeds(456.0, 123.0, n_prompt=400, plain_tok_s=99.0))
    assert json.loads(run("-m", str(tiny), "--json").stdout)["measured"] == {
        "decode_tok_s": 123.0,
        "plain_tok_s": 99.0,
        "prefill_tok_s": 456.0,
        "n_prompt": 400,
    }
    shown = run("-m", str(tiny)).stdout
    assert "(measured 99, 123 with drafts)" in shown
    assert "(measured 456 tok/s)" in shown


def test_a_rate_of_other_prompts_than_the_predicted_one_says_of_how_many_tokens(tiny):
    with GGUFFile.open(tiny) as file:
        here = fingerprint(file), "cpu", len(usable_cores())
    for n_prompt, rate in ((36, 100.0), (40, 200.0), (42, 220.0)):
        SpeedLog().record(*here, measured=MeasuredSpeeds(rate, n_prompt=n_prompt))
    assert "(measured 200 tok/s for 40 tokens)" in run("-m", str(tiny)).stdout
    SpeedLog().record(*here, measured=MeasuredSpeeds(900.0, n_prompt=500))
    assert "(measured 900 tok/s)" in run("-m", str(tiny)).stdout


def test_a_plan_says_whether_answers_have_corrected_it(tiny):
    assert "no answer was measured here yet" in run("-m", str(tiny)).stdout
    before = planned("-m", str(tiny))["predicted"]
    calibration = ProfileStore().calibration(fingerprint_of(read_topology()))
    calibration.note_prompt(40, 0.001, 0.051, is_first=True)
    calibration.note_tokens(0.001, 0.003, 0.002)
    calibration.save()
    after = planned("-m", str(tiny))["predicted"]
    assert after["ttft_s"] == pytest.approx(before["ttft_s"] + 0.05)
    assert after["prefill_tok_s"] == pytest.approx(511 / after["ttft_s"])
    assert 1 / after["decode_tok_s"] == pytest.approx(1 / before["decode_tok_s"] + 0.002)
    assert after["corrections"] == pytest.approx({"prefill": 1.0, "decode": 1.0, "begin_s": 0.05, "step_s": 0.002})
    shown = run("-m", str(tiny)).stdout
    assert "corrected by answers given here: prompts x 1.00 + 50 ms, tokens x 1.00 + 2 ms" in shown
    assert "corrected" not in run("-m", str(tiny), "--machine", "t4-xeon8").stdout


def test_a_machine_that_was_never_measured_is_measured_in_short(tiny, monkeypatch):
    for path in ProfileStore().folder.iterdir():
        path.unlink()
    asked = []

    def probe(topology, wanted, folder, progress):
        asked.append(wanted)
        return replace(machine(), fingerprint=fingerprint_of(topology), measured="now", idle_share=0.95, short=True)

    monkeypatch.setattr("edgeinfer.engine.probing.probe.probe", probe)
    assert "in short" in run("-m", str(tiny)).stdout
    (wanted,) = asked
    assert wanted.short
    assert wanted.formats == ("F32",)
    assert run("-m", str(tiny)).exit_code == 0
    assert len(asked) == 1  # it was kept


def test_a_profile_of_a_busy_machine_is_said_to_be_one(tiny):
    store = ProfileStore()
    (path,) = store.folder.iterdir()
    store.save(replace(store.find(path.stem), idle_share=0.5))
    assert "others used 50 %" in run("-m", str(tiny)).stdout


def test_a_device_that_nothing_is_known_of_is_not_predicted(tiny):
    plan = json.loads(run("-m", str(tiny), "--device", "reference", "--json").stdout)
    assert plan["predicted"]["decode_tok_s"] is plan["machine"] is None
    assert "not measured yet" in run("-m", str(tiny), "--device", "reference").stdout


def test_auto_is_planned_for_as_the_device_that_won_before(tiny, monkeypatch):
    monkeypatch.setattr(device_choice, "LEAST_BYTES", 1)
    monkeypatch.setattr(device_choice, "_installed", lambda: ["reference:0"])
    with GGUFFile.open(tiny) as file:
        key = f"{fingerprint_of(read_topology())} {fingerprint(file)} reference:0"
    assert "stages on cpu" in run("-m", str(tiny)).stdout
    Choices().keep(key, DeviceChoice("reference"))
    assert "stages on reference" in run("-m", str(tiny)).stdout

    def rates(name, *others):
        raise DeviceUnavailable("its driver is gone")

    monkeypatch.setattr(combination, "accelerator_rates", rates)
    Choices().keep(key, DeviceChoice("openvino"))
    assert "stages on cpu" in run("-m", str(tiny)).stdout
    assert "its driver is gone" in run("-m", str(tiny), "--device", "openvino").stderr


@pytest.fixture
def equals(monkeypatch):
    """Whatever is measured, another device is as fast as the cpu, and near."""
    monkeypatch.setattr(
        combination, "accelerator_rates", lambda name, *others: device(name, link=Link(1e12, 1e12, 1e-8))
    )


@pytest.mark.usefixtures("equals")
@pytest.mark.skipif(len(read_topology().workers()) < 2, reason="two devices need two cores")
def test_several_devices_are_shown_as_they_share_the_model(tiny):
    here = ("-m", str(tiny), "--device", "openvino,cpu", "--schedule", "rows")
    with GGUFFile.open(tiny) as file:
        for name, rate in (("cpu", 123.0), ("cpu+openvino", 77.0)):
            SpeedLog().record(fingerprint(file), name, len(usable_cores()), measured=MeasuredSpeeds(decode_tok_s=rate))
    shown = run(*here)
    assert shown.exit_code == 0, shown.output
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("plan ")]
    assert "on cpu+openvino" in line
    assert "all " not in line
    assert "(measured 77 with drafts)" in shown.stdout
    found = planned(*here)
    assert found["measured"]["decode_tok_s"] == 77.0
    assert "on cpu+openvino" in found["plan"]


@pytest.mark.skipif(len(read_topology().workers()) < 2, reason="two devices need two cores")
def test_one_device_alone_is_planned_where_it_answers_sooner(tiny, monkeypatch):
    def rates(name, *others):
        return device(name, read=1e8, madds=1e8, link=Link(1e9, 1e9, 1e-3))

    monkeypatch.setattr(combination, "accelerator_rates", rates)
    here = ("-m", str(tiny), "--device", "openvino,cpu")
    shown = run(*here)
    assert shown.exit_code == 0, shown.output
    assert "stages on cpu" in shown.stdout
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("refused ")]
    assert "cpu alone answers sooner" in line
    assert "cpu alone" in planned(*here)["refused"]
    together = planned(*here, "--schedule", "rows")
    assert together["refused"] is None
    assert together["schedule"] == "rows"


@pytest.mark.parametrize("name", machine_names())
@pytest.mark.parametrize("schedule", ["auto", "cpu", "static", "hetegen"])
def test_other_machines_are_planned_for(tiny, name, schedule):
    result = run("-m", str(tiny), "--machine", name, "--schedule", schedule, "--json")
    if schedule in ("static", "hetegen") and not machine_profile(name).accelerators:
        assert result.exit_code == 1
        assert "auto, cpu" in result.stderr
        return
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["machine"] == name
    assert plan["schedule"] == schedule
    assert plan["memory"]["available_bytes"] == machine_profile(name).cpu.memory_bytes
    assert plan["memory"]["total_bytes"] == plan["predicted"]["ram_bytes"]
    assert plan["assumptions"]
    assert plan["predicted"]["decode_tok_s"] > 0
    rows = [lane["rows"] for stage in plan["stages"] if stage["ops"] == "blk.0.ffn_up" for lane in stage["lanes"]]
    assert sum(stop - start for start, stop in rows) == 2 * 96  # of decoding and of reading a prompt


def test_a_profile_file_is_a_machine_too(tiny, tmp_path):
    (path,) = ProfileStore().folder.iterdir()
    other = tmp_path / "other.toml"
    other.write_text(path.read_text().replace('name = "plain"', 'name = "another"'))
    assert json.loads(run("-m", str(tiny), "--machine", str(other), "--json").stdout)["machine"] == "another"
    other.write_text("version = 1\nname = 3\n")
    refused = run("-m", str(tiny), "--machine", str(other))
    assert refused.exit_code == 1
    assert str(other) in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--machine", "abacus"), "rtx4060-laptop"),
        (("--schedule", "accelerator"), "auto, cpu"),
        (("--schedule", "apex"), "--batch"),
        (("--schedule", "apex", "--batch", "4"), "--machine"),
        (("--cores", "0,9999"), "core 9999 cannot be used here"),
        (("--machine", "t4-xeon8", "--cores", "99"), "t4-xeon8 has no core 99; it has: 0, 1"),
    ],
)
def test_what_cannot_be_planned_says_what_could(tiny, arguments, words):
    result = run("-m", str(tiny), *arguments)
    assert result.exit_code == 1
    assert words in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "reference", "--schedule", "nonsense"), "asymmetric"),
        (("--goal", "glory"), "throughput"),
        (("--machine", "t4-xeon8", "--vram", "soon"), "such as"),
        (("--ram", "some"), "such as"),
    ],
)
def test_what_is_no_value_of_an_option_is_a_wrong_command_line(tiny, arguments, words):
    result = run("-m", str(tiny), *arguments)
    assert (result.exit_code, words in result.stderr) == (2, True)


def planned(*arguments: str) -> dict[str, object]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_quiet_takes_half_of_the_cores_and_part_of_the_time(tiny):
    here = ("-m", str(tiny), "--machine", "rtx4060-laptop", "--schedule", "cpu")
    usual, quiet = planned(*here), planned(*here, "--goal", "quiet")
    assert len(quiet["cores"]["prefill"]["cores"]) <= len(usual["cores"]["prefill"]["cores"]) / 2 + 0.5
    assert (usual["cores"]["duty"], quiet["cores"]["duty"]) == (1.0, 0.6)
    assert quiet["predicted"]["decode_tok_s"] < 0.61 * usual["predicted"]["decode_tok_s"]
    assert "60 % of the time" in run(*here, "--goal", "quiet").stdout


def test_cores_that_were_asked_for_are_planned_with(tiny):
    here = ("-m", str(tiny), "--machine", "rtx4060-laptop", "--schedule", "cpu")
    some = planned(*here, "--cores", "0,1")
    assert set(some["cores"]["prefill"]["cores"]) <= {0, 1}
    assert some["predicted"]["prefill_tok_s"] < planned(*here)["predicted"]["prefill_tok_s"]


def test_throughput_on_several_nodes_asks_for_replicas(tiny):
    here = ("-m", str(tiny), "--machine", "xeon-2node", "--batch", "16")
    found = planned(*here, "--goal", "throughput")
    assert found["cores"]["replicas"]
    assert planned(*here)["cores"]["replicas"] is None
    assert found["predicted"]["decode_tok_s"] >= planned(*here)["predicted"]["decode_tok_s"]
    assert "nodes  " in run(*here, "--goal", "throughput").stdout


def test_several_sequences_share_an_accelerator_as_the_schedule_says(tiny):
    found = {}
    for schedule in ("accelerator-only", "asymmetric", "overlap", "apex"):
        result = run("-m", str(tiny), "--machine", "t4-xeon8", "--batch", "8", "--schedule", schedule, "--json")
        assert result.exit_code == 0, result.output
        found[schedule] = json.loads(result.stdout)["batch"]
    rates = {schedule: batch["tok_s"] for schedule, batch in found.items()}
    assert rates["apex"] == pytest.approx(max(rates.values()))
    assert found["overlap"]["schedule"] == "overlap"


@pytest.mark.parametrize("device", ["cpu", "reference", "null"])
def test_the_footprint_is_what_a_lane_then_holds(tiny, device):
    limits = limits_for(256)
    with open_model(tiny, 256) as model:
        _, plan = plan_for(model.file, device=device, n_context=256)
        kind = DEVICES.get(device)
        opened = kind.open(DeviceOptions(n_workers=1))
        lane = opened.compile(model.spec, model.file, limits)
        taken = kind.footprint(model.spec, model.file.tensors, limits)
        assert lane.resident_bytes == taken.weight_bytes + taken.kv_bytes + taken.buffer_bytes
        assert plan.need.weight_bytes == taken.weight_bytes
        lane.close()
        opened.close()


def test_text_names_device_sizes_and_context(tiny):
    result = run("-m", str(tiny))
    assert result.exit_code == 0
    assert "on cpu" in result.stdout
    assert "512 tokens" in result.stdout
    assert "bound by" in result.stdout
    assert "blk.0 to blk.1" in result.stdout


def test_a_share_of_memory_is_not_one_of_the_model(tiny, monkeypatch):
    monkeypatch.setattr("edgeinfer.scheduling.machine.topology.available_bytes", lambda: 10 * 10**9)
    here = ("-m", str(tiny), "--device", "cpu")
    assert "may take 40% of available memory = 4.00 GB" in run(*here, "--ram", "40%").stdout
    assert "may take" not in run(*here, "--ram", "4GB").stdout
    there = run(*here, "--machine", "xeon-2node", "--ram", "50%").stdout
    assert "may take 50% of the memory of xeon-2node = 256.0 GB" in there
    for command, words in (
        ("plan", "60% of available memory (not of the model)"),
        ("run", "such as 3GB or 60% of available memory"),
    ):
        shown = CliRunner().invoke(build_app(), [command, "--help-all"]).stdout
        assert words in " ".join(shown.split())


def test_a_plan_that_does_not_fit_says_by_how_much(tiny):
    result = run("-m", str(tiny), "--ctx", str(1 << 31))
    assert result.exit_code == 1
    assert "KV cache" in result.stdout
    assert "even with its weights read from disk" in result.stderr
    assert re.search(r"a context of (\d+) tokens would fit \(--ctx \1\)", result.stderr)
    assert re.search(r"^fits      no: .* would fit", result.stdout, re.MULTILINE)


def test_a_header_alone_is_enough(tiny):
    raw = tiny.read_bytes()
    with GGUFFile.open(tiny) as file:
        first_tensor = min(info.offset for info in file.tensors.values())
    header = parse_header(raw[:first_tensor], 10**15)
    assert check_fits(header, 10**6) is None
    with pytest.raises(DoesNotFit, match="GB"):
        check_fits(header, 10**6, n_context=2**30)


def test_decoding_is_predicted_for_the_cores_that_it_is_planned_for(tiny):
    plan = planned("-m", str(tiny), "--machine", "xeon-2node")
    assert len(plan["cores"]["decode"]["cores"]) < 64
    assert plan["predicted"]["decode_tok_s"] == pytest.approx(1 / plan["cores"]["decode"]["seconds"], rel=0.05)
    all_cores = ",".join(str(core.number) for core in machine_profile("xeon-2node").cpu.cores)
    slower = planned("-m", str(tiny), "--machine", "xeon-2node", "--cores", all_cores)
    assert slower["predicted"]["decode_tok_s"] <= plan["predicted"]["decode_tok_s"] * 1.001
