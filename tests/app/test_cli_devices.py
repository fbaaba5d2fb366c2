"""Devices as users name them: several at once, one that fails in the middle of an answer, names that do not go."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from edgeinfer.app.cli import build_app
from edgeinfer.backends.reference import ReferenceFragment, ReferenceLane
from edgeinfer.engine.measure.profiles import ProfileStore
from edgeinfer.engine.probing import accelerator, combination
from edgeinfer.engine.probing.probe import ProbeRequest, probe
from edgeinfer.engine.probing.synthetic import ModelShape
from edgeinfer.errors import DeviceFailed
from edgeinfer.graph.step import Floats, Step
from edgeinfer.scheduling.machine.profile import DeviceRates, Link, Profile
from edgeinfer.scheduling.machine.topology import read_topology
from tests.unit.scheduling.profiles import device

pytestmark = pytest.mark.skipif(len(read_topology().workers()) < 2, reason="two devices need two cores")
QUESTION = ("run", "the cat sat", "--temp", "0", "--max-tokens", "24", "--json")


@pytest.fixture(scope="module")
def plain(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The answer of the cpu alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEINFER_HOME", str(tmp_path_factory.mktemp("plain")))
        return answer("-m", str(tiny_model))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """The cpu, measured as if nothing else had run: what was measured beside other programs is not kept."""
    return replace(
        probe(read_topology(), ProbeRequest(True, ("F32",)), tmp_path_factory.mktemp("disk")), idle_share=1.0
    )


@pytest.fixture(autouse=True)
def _quick(home: Path, measured: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's models or settings; the cpu is measured once, and little is of other devices."""
    ProfileStore().save(measured)
    monkeypatch.setattr("edgeinfer.engine.probing.probe.MOST_ROUNDS", 1)
    small = ModelShape(256, 512, 4, 2, 64, 1, 256, 256)
    for name, value in (("SLIM", small), ("BROAD", replace(small, width=512, heads=8))):
        monkeypatch.setattr(accelerator, name, value)
    monkeypatch.setattr("edgeinfer.engine.probing.link.EXCHANGE_RUNS", {1: 2, 8: 1})
    monkeypatch.setattr(combination, "USUAL", accelerator.Amount({1: 2, 4: 1}, (8, 16), 1, 1, 1))
    monkeypatch.setattr(combination, "footprint", lambda topology: 1 << 20)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is measured, the other device is slow and far away."""

    def rates(name: str, *others: object) -> DeviceRates:
        return device(name, read=1e8, madds=1e8, link=Link(1e9, 1e9, 1e-3))

    monkeypatch.setattr(combination, "accelerator_rates", rates)


@pytest.fixture
def equals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is measured, the other device is as fast as a core, and near: a plan gives rows to both."""

    def rates(name: str, *others: object) -> DeviceRates:
        return device(name, read=20e9, madds=40e9, link=Link(1e12, 1e12, 1e-8))

    monkeypatch.setattr(combination, "accelerator_rates", rates)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments))


def answer(*arguments: str) -> dict[str, object]:
    found = command(*QUESTION, *arguments)
    assert found.exit_code == 0, found.output
    record: dict[str, object] = json.loads(found.stdout)
    return record


@pytest.mark.usefixtures("slow")
def test_the_cpu_alone_is_taken_where_it_is_faster(tiny_model: Path, plain: dict[str, object]) -> None:
    together = answer("-m", str(tiny_model), "--device", "cpu,reference")
    assert together["devices"] == ["cpu"]
    assert together["tokens"] == plain["tokens"]
    assert any("on cpu alone" in notice for notice in together["notices"])  # type: ignore[attr-defined]


@pytest.mark.usefixtures("equals")
def test_two_devices_share_a_model_where_that_is_asked_for(tiny_model: Path, plain: dict[str, object]) -> None:
    together = answer("-m", str(tiny_model), "--device", "reference,cpu", "--schedule", "rows")
    assert together["devices"] == ["cpu", "reference"]
    assert any("by schedule rows" in notice for notice in together["notices"])  # type: ignore[attr-defined]
    assert together["tokens"][:4] == plain["tokens"][:4]  # type: ignore[index]
    assert str(plain["plan"]).startswith("cpu: everything, ")
    assert str(together["plan"]).startswith("cpu+reference by schedule rows: ")
    assert "stages on cpu+reference" in str(together["plan"])
    told = command(
        "run", "the cat", "-m", str(tiny_model), "--device", "cpu,reference", "--schedule", "rows", "--stats"
    )
    assert "last pass" in told.stderr
    assert "reference" in told.stderr


def test_names_that_do_not_go_together_are_refused(tiny_model: Path) -> None:
    for names, words in (
        ("openvino,reference", "need the cpu among them"),
        ("cpu,llamacpp", "llamacpp runs whole models by itself"),
        ("cpu,abacus", "--device needs a device, not 'abacus'"),
        ("cpu,null", "cannot run part of a model"),
    ):
        found = command("run", "hi", "-m", str(tiny_model), "--device", names)
        assert found.exit_code == (2 if "abacus" in names else 1)
        assert words in found.stderr.replace("\n", " ")


@pytest.mark.parametrize("names", ["cpu,reference", "cpu"])
def test_a_schedule_there_is_not_lists_those_there_are(tiny_model: Path, names: str) -> None:
    found = command("run", "hi", "-m", str(tiny_model), "--device", names, "--schedule", "chaos")
    assert found.exit_code == 2
    assert "hetegen" in found.stderr


@pytest.mark.parametrize("last", [1, 2, 9])
def test_an_answer_survives_its_device(
    tiny_model: Path, plain: dict[str, object], monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """The device breaks down at its `last` pass: the cpu goes on from the same token."""
    left, before = [last], ReferenceLane.run

    def run(lane: ReferenceLane, step: Step) -> Floats:
        left[0] -= 1
        if left[0] <= 0:
            raise DeviceFailed("out of memory on the device")
        return before(lane, step)

    monkeypatch.setattr(ReferenceLane, "run", run)
    monkeypatch.setattr("edgeinfer.engine.opening.evaluator.NEVER_RESCUED", ("cpu",))
    found = answer("-m", str(tiny_model), "--device", "reference")
    assert found["tokens"] == plain["tokens"]
    assert found["devices"] == ["cpu"]
    assert str(found["plan"]).startswith("cpu: everything, ")
    assert "reference failed and was dropped; cpu goes on (out of memory on the device)" in found["notices"]  # type: ignore[operator]


@pytest.mark.usefixtures("equals")
def test_an_answer_survives_one_of_two_devices(
    tiny_model: Path, plain: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, before = [60], ReferenceFragment.submit

    def submit(lane: ReferenceFragment, step: Step, inputs: Mapping[str, Floats]) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise DeviceFailed("the driver was reset")
        before(lane, step, inputs)

    monkeypatch.setattr(ReferenceFragment, "submit", submit)
    found = answer("-m", str(tiny_model), "--device", "cpu,reference", "--schedule", "rows")
    assert found["tokens"] == plain["tokens"]
    assert any("cpu+reference failed and was dropped; cpu goes on" in each for each in found["notices"])  # type: ignore[attr-defined]


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
def test_openvino_beside_the_cpu(tiny_model: Path, plain: dict[str, object]) -> None:
    together = answer("-m", str(tiny_model), "--device", "cpu,openvino", "--schedule", "rows")
    assert together["devices"] == ["cpu", "openvino"]
    assert np.array_equal(together["tokens"][:4], plain["tokens"][:4])  # type: ignore[index]
    shown = command("plan", "-m", str(tiny_model), "--device", "cpu,openvino", "--schedule", "rows", "--json")
    assert shown.exit_code == 0, shown.output
    devices = {lane["device"] for stage in json.loads(shown.stdout)["stages"] for lane in stage["lanes"]}
    assert "openvino" in devices
    probed = command("probe", "--device", "openvino", "--json")
    link = json.loads(probed.stdout)["device"][1]["link"]
    assert link["latency_us"] > 0
    assert link["to_device_gb_s"] > 0
