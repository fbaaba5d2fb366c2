"""The race of devices for a model: who takes part, who wins, and that it is run once."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine import race
from edgeinfer.engine.evaluators import Subject, open_subject
from edgeinfer.engine.executor import AUTO_DEVICE, Executor
from edgeinfer.engine.limits import limits_for
from edgeinfer.engine.race import Choices, Finish, chosen_device, entrants, first_layers, winner_of
from edgeinfer.scheduling.topology import read_topology
from edgeinfer.settings import KVKind
from tests.golden.goldens import Golden

GOLDEN = Golden.read("llama-q8_0")
OPTIONS = DeviceOptions(n_workers=1)


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setattr(race, "LEAST_BYTES", 0)
    return open_subject(GOLDEN.model, AUTO_DEVICE, GOLDEN.n_context)


def test_the_cpu_wins_unless_another_is_clearly_faster() -> None:
    cpu = Finish("cpu", 1000, 100)
    assert winner_of([cpu, Finish("openvino", 1000, 105)]) == "cpu"
    assert winner_of([cpu, Finish("openvino", 1000, 130)]) == "openvino"
    assert winner_of([cpu, Finish("openvino", 1e6, 90)]) == "cpu"
    assert winner_of([Finish("openvino", 10, 10)]) == "openvino"
    assert winner_of([]) == "cpu"


def test_those_that_cannot_run_the_model_do_not_take_part(subject: Subject) -> None:
    found = race.race(["cpu", "openvino:abacus", "nobody", "reference"], subject, OPTIONS)
    assert [each.device for each in found] == ["cpu", "reference"]
    assert all(each.prefill_tok_s > 0 and each.decode_tok_s > 0 for each in found)


def test_the_cpu_is_always_there() -> None:
    assert entrants()[0] == "cpu"
    assert "reference" not in entrants()
    assert "null" not in entrants()


def test_a_race_is_run_once_and_remembered(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices, topology, races = Choices(tmp_path / "devices.json"), read_topology(), list[tuple[str, ...]]()

    def raced(names: tuple[str, ...], *others: object) -> tuple[Finish, ...]:
        races.append(names)
        return Finish("cpu", 100, 10), Finish("openvino", 200, 20)

    monkeypatch.setattr(race, "race", raced)
    monkeypatch.setattr(race, "_installed", lambda: ["openvino:1"])
    before = chosen_device(subject, topology, OPTIONS, may_race=False, choices=choices)
    first = chosen_device(subject, topology, OPTIONS, may_race=True, choices=choices)
    again = chosen_device(subject, topology, OPTIONS, may_race=False, choices=choices)
    assert before == race.Chosen("cpu")
    assert first.device == again.device == "openvino"
    assert first.notice is not None
    assert "openvino 200 and 20, cpu 100 and 10" in first.notice
    assert again.notice is None
    assert len(races) == 1
    monkeypatch.setattr(race, "_installed", lambda: ["openvino:2"])  # another version may be faster or slower
    chosen_device(subject, topology, OPTIONS, may_race=True, choices=choices)
    assert len(races) == 2


def test_other_cores_and_another_kv_are_another_race(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is fastest with all cores may not be with one, or with keys and values in int8."""
    choices, raced = Choices(tmp_path / "devices.json"), list[tuple[DeviceOptions, str]]()
    topology = Mock(wraps=read_topology(), workers=lambda: (0, 1))
    monkeypatch.setattr(race, "fingerprint_of", lambda topology: "machine")

    def run(names: object, subject: Subject, options: DeviceOptions, kv: str, progress: object) -> tuple[Finish, ...]:
        raced.append((options, kv))
        return Finish("cpu", 100, 10), Finish(f"device-{len(raced)}", 200, 20)

    monkeypatch.setattr(race, "race", run)
    monkeypatch.setattr(race, "_installed", lambda: ["openvino:1"])
    manners: list[tuple[DeviceOptions, KVKind]] = [
        (DeviceOptions(), "f16"),
        (DeviceOptions(), "int8"),
        (DeviceOptions(n_workers=1), "f16"),
        (DeviceOptions(cores=(1,)), "f16"),
    ]
    for _ in range(2):
        found = [
            chosen_device(subject, topology, options, kv=kv, may_race=True, choices=choices).device
            for options, kv in manners
        ]
        assert found == ["device-1", "device-2", "device-3", "device-4"]
    assert raced == manners
    planned = DeviceOptions(2, (0, 1), decode_shares=(0.5, 0.5))  # a plan of the cpu's cores is not asked for
    assert chosen_device(subject, topology, planned, may_race=False, choices=choices).device == "device-1"


def test_alone_the_cpu_does_not_race(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "_installed", list)
    monkeypatch.setattr(race, "race", None)
    assert chosen_device(subject, read_topology(), OPTIONS, may_race=True) == race.Chosen("cpu")


def test_the_cpu_runs_mixtures_of_experts_without_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "LEAST_BYTES", 0)
    monkeypatch.setattr(race, "_installed", lambda: ["openvino:1"])
    monkeypatch.setattr(race, "race", None)
    mixture = open_subject(Golden.read("olmoe-f16").model, AUTO_DEVICE, 128)
    assert chosen_device(mixture, read_topology(), OPTIONS, may_race=True) == race.Chosen("cpu")


def test_tiny_models_do_not_race(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(race, "race", None)
    assert chosen_device(subject, read_topology(), OPTIONS, may_race=True) == race.Chosen("cpu")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 3}', "\0"])
def test_damaged_choices_count_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "devices.json"
    path.write_text(text)
    choices = Choices(path)
    assert choices.find("a") is None
    choices.keep("a", "onnx")
    assert choices.find("a") == "onnx"


def test_only_the_last_choices_are_kept(tmp_path: Path) -> None:
    choices = Choices(tmp_path / "devices.json")
    for number in range(race.MOST_KEPT + 3):
        choices.keep(str(number), "cpu")
    assert choices.find("2") is None
    assert choices.find("3") == "cpu"


def test_of_large_models_a_few_layers_race(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    assert subject.spec is not None
    assert first_layers(subject.spec, subject) == (subject.spec, 1.0)
    monkeypatch.setattr(race, "RACED_BYTES", 1)
    spec, share = first_layers(subject.spec, subject)
    assert [stage.name for stage in spec.stages] == ["embed", "blk.0", "head"]
    assert 0 < share < 1
    with Executor.open(spec, subject.file, "few", limits_for(128), "cpu", OPTIONS) as executor:
        assert race._pass_s(executor, executor.create(), 8) > 0
