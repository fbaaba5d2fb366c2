"""Which device `auto` means: who takes part, and that the comparison is made once, or again where it is not trusted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgeinfer.backends.base import DeviceOptions
from edgeinfer.engine.opening import device_choice
from edgeinfer.engine.opening.device_choice import (
    CANNOT_COMPARE,
    SLOW_ANSWERS,
    Choices,
    ChosenDevice,
    CompareDevices,
    DeviceChoice,
    choice_key,
    chosen_device,
    entrant_kinds,
    note_speed,
)
from edgeinfer.engine.run.evaluators import Subject, open_subject
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.load_options import LoadOptions
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.setting_values import KVKind, Race
from tests.golden.goldens import Golden

GOLDEN = Golden.read("llama-q8_0")
OPTIONS = DeviceOptions(n_workers=1)
Found = tuple[DeviceChoice, str | None]
FALSE: Found = DeviceChoice("onnx", True, runner_up_tok_s=134.0), "onnx, but other programs were busy"
TRUE: Found = DeviceChoice("cpu", runner_up_tok_s=185.0), "the cpu"
ALONE: Found = DeviceChoice("cpu"), None


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setattr(device_choice, "LEAST_BYTES", 0)
    monkeypatch.setattr(device_choice, "_installed", lambda: ["openvino:1"])
    return open_subject(GOLDEN.model, LoadOptions(device=AUTO_DEVICE, n_context=GOLDEN.n_context))


class Races:
    """Races that end like this, the last one for ever; the number of those that were run."""

    def __init__(self, *results: Found) -> None:
        self._results, self.n_run = results, 0

    def __call__(self) -> Found:
        self.n_run += 1
        return self._results[min(self.n_run, len(self._results)) - 1]


def starts(subject: Subject, path: Path, races: CompareDevices, idle: float = 1.0) -> Callable[[], ChosenDevice]:
    """What a start of the program does."""
    return lambda: chosen_device(
        subject, read_topology(), OPTIONS, race="first", compare=races, choices=Choices(path), idle=lambda: idle
    )


def refuse() -> Found:
    raise AssertionError("nothing is to be compared")


def test_the_cpu_is_always_there_and_what_takes_part_is_not_imported() -> None:
    code = (
        "import sys; from edgeinfer.engine.opening.device_choice import entrant_kinds; print(entrant_kinds());"
        "assert not {'openvino', 'onnxruntime', 'onnx', 'llama_cpp', 'numba_cuda'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert entrant_kinds()[0] == "cpu"
    assert not {"reference", "null"} & set(entrant_kinds())


def test_a_race_is_run_once_and_remembered(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    races = Races((DeviceChoice("openvino", runner_up_tok_s=10.0), "openvino is the fastest"))
    choices, topology = Choices(tmp_path / "devices.json"), read_topology()
    start = starts(subject, tmp_path / "devices.json", races)
    before = chosen_device(subject, topology, OPTIONS, race="never", compare=races, choices=choices)
    first = start()
    again = start()
    assert before == ChosenDevice("cpu")
    assert first.device == again.device == "openvino"
    assert first.notice == "openvino is the fastest"
    assert again.notice is None
    assert races.n_run == 1
    monkeypatch.setattr(device_choice, "_installed", lambda: ["openvino:2"])  # another version may be faster or slower
    start()
    assert races.n_run == 2


def test_where_devices_cannot_be_compared_the_known_one_runs_the_model(subject: Subject, tmp_path: Path) -> None:
    choices, topology = Choices(tmp_path / "devices.json"), read_topology()

    def start(race: Race) -> ChosenDevice:
        return chosen_device(subject, topology, OPTIONS, race=race, choices=choices)

    assert start("first") == start("after") == ChosenDevice("cpu", CANNOT_COMPARE)
    assert start("never") == ChosenDevice("cpu")
    starts(subject, tmp_path / "devices.json", Races(FALSE))()
    assert start("first") == ChosenDevice("onnx", CANNOT_COMPARE)  # a provisional choice, which cannot be made again
    starts(subject, tmp_path / "devices.json", Races(TRUE))()
    assert start("first") == ChosenDevice("cpu")


def test_a_false_result_of_a_busy_machine_does_not_stick(subject: Subject, tmp_path: Path) -> None:
    races = Races(FALSE, TRUE)
    start = starts(subject, tmp_path / "devices.json", races)
    assert start() == ChosenDevice("onnx", FALSE[1])
    assert start() == ChosenDevice("cpu", TRUE[1])
    assert start() == ChosenDevice("cpu")
    assert races.n_run == 2


def test_a_machine_that_is_always_busy_is_not_asked_at_every_start(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seconds = tmp_path / "devices.json", [1e9]
    monkeypatch.setattr(device_choice, "now_s", lambda: seconds[0])
    races = Races(FALSE)
    for _ in range(9):
        starts(subject, path, races)()
    assert races.n_run == 3
    seconds[0] += 25 * 3600
    for _ in range(9):
        assert starts(subject, path, races)().device == "onnx"
    assert races.n_run == 4
    seconds[0] += 25 * 3600
    starts(subject, path, races)()
    assert races.n_run == 4
    seconds[0] += 25 * 3600
    starts(subject, path, races)()
    assert races.n_run == 5


def test_a_race_is_not_repeated_while_the_machine_is_busy(subject: Subject, tmp_path: Path) -> None:
    races = Races(FALSE, TRUE)
    path = tmp_path / "devices.json"
    starts(subject, path, races)()
    assert starts(subject, path, races, idle=0.0)() == ChosenDevice("onnx")
    assert races.n_run == 1
    assert starts(subject, path, races)().device == "cpu"


def test_answers_slower_than_the_second_device_was_have_the_race_repeated(subject: Subject, tmp_path: Path) -> None:
    certain = replace(FALSE[0], is_provisional=False), FALSE[1]
    races, choices = Races(certain, TRUE), Choices(tmp_path / "devices.json")
    start = starts(subject, tmp_path / "devices.json", races)
    assert start().device == start().device == "onnx"

    def answer(decode_tok_s: float, idle: float = 1.0) -> None:
        fingerprint, cores = subject.fingerprint, read_topology().workers()[:1]
        given = fingerprint, "onnx", read_topology(), "f16", cores, decode_tok_s
        note_speed(*given, choices=choices, idle=lambda: idle)  # type: ignore[arg-type]

    def is_repeated() -> bool:
        before = races.n_run
        start()
        return races.n_run > before

    for _ in range(2 * SLOW_ANSWERS):
        answer(60, idle=0.0)  # other programs make it slow
    assert not is_repeated()
    for _ in range(SLOW_ANSWERS):
        answer(60)
        answer(150)
    assert not is_repeated()
    for _ in range(SLOW_ANSWERS):
        answer(60)
    assert is_repeated()
    assert start() == ChosenDevice("cpu")


def test_a_race_that_no_other_device_finishes_changes_no_choice(subject: Subject, tmp_path: Path) -> None:
    start = starts(subject, tmp_path / "devices.json", Races(FALSE, ALONE))
    assert [start().device, start()] == ["onnx", ChosenDevice("onnx")]


def test_choices_of_before_are_read(subject: Subject, tmp_path: Path) -> None:
    path, topology = tmp_path / "devices.json", read_topology()
    cores = topology.workers()[:1]
    key = choice_key(subject.fingerprint, topology, "f16", cores, ["openvino:1"])
    path.write_text(f'{{"{key}": "openvino"}}')
    assert starts(subject, path, refuse)() == ChosenDevice("openvino")


def test_other_cores_and_another_kv_are_another_race(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is fastest with all cores may not be with one, or with keys and values of 8 bits."""
    choices, races = Choices(tmp_path / "devices.json"), list[str]()
    topology = Mock(wraps=read_topology(), workers=lambda: (0, 1))
    monkeypatch.setattr(device_choice, "fingerprint_of", lambda topology: "machine")

    def compare() -> Found:
        races.append(f"device-{len(races) + 1}")
        return DeviceChoice(races[-1]), f"{races[-1]} is the fastest"

    manners: list[tuple[DeviceOptions, KVKind]] = [
        (DeviceOptions(), "f16"),
        (DeviceOptions(n_workers=1), "f16"),
        (DeviceOptions(cores=(1,)), "f16"),
        (DeviceOptions(), "q8"),
    ]
    for _ in range(2):
        found = [
            chosen_device(subject, topology, options, kv=kv, race="first", compare=compare, choices=choices).device
            for options, kv in manners
        ]
        assert found == races == ["device-1", "device-2", "device-3", "device-4"]
    planned = DeviceOptions(2, (0, 1), decode_shares=(0.5, 0.5))  # a plan of the cpu's cores is not asked for
    assert chosen_device(subject, topology, planned, race="never", choices=choices).device == "device-1"


def test_alone_the_cpu_does_not_race(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_choice, "_installed", list)
    assert chosen_device(subject, read_topology(), OPTIONS, race="first", compare=refuse) == ChosenDevice("cpu")


@pytest.mark.usefixtures("subject")
def test_the_cpu_runs_mixtures_of_experts_without_a_race() -> None:
    mixture = open_subject(Golden.read("olmoe-f16").model, LoadOptions(device=AUTO_DEVICE, n_context=128))
    assert chosen_device(mixture, read_topology(), OPTIONS, race="first", compare=refuse) == ChosenDevice("cpu")


def test_tiny_models_do_not_race(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert chosen_device(subject, read_topology(), OPTIONS, race="first", compare=refuse) == ChosenDevice("cpu")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 3}', "\0", '{"a": {}}', '{"a": {"device": 1}}'])
def test_damaged_choices_count_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "devices.json"
    path.write_text(text)
    choices = Choices(path)
    assert choices.find("a") is None
    choices.keep("a", DeviceChoice("onnx", True, 2, 5.0, 185.0, 1))
    assert choices.find("a") == DeviceChoice("onnx", True, 2, 5.0, 185.0, 1)


def test_damaged_parts_of_a_choice_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text('{"a": {"device": "cpu", "tries": -3, "tried_at": "now", "runner_up_tok_s": 1e99, "n_slow": []}}')
    assert Choices(path).find("a") == DeviceChoice("cpu")


def test_only_the_last_choices_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text(str({f"old {number}": "cpu" for number in range(256)}).replace("'", '"'))
    choices = Choices(path)
    for number in range(3):
        choices.keep(str(number), DeviceChoice("cpu"))
    assert choices.find("old 2") is None
    assert choices.find("old 3") == choices.find("2") == DeviceChoice("cpu")
