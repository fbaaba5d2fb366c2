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
from edgeinfer.engine.racing import choosing
from edgeinfer.engine.racing.choosing import (
    SLOW_ANSWERS,
    Choices,
    ChosenDevice,
    DeviceChoice,
    choice_key,
    chosen_device,
    entrant_kinds,
    note_speed,
)
from edgeinfer.engine.racing.contest import Finish
from edgeinfer.engine.run.evaluators import Subject, open_subject
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.load_options import LoadOptions
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.settings import KVKind
from tests.golden.goldens import Golden

GOLDEN = Golden.read("llama-q8_0")
OPTIONS = DeviceOptions(n_workers=1)
FALSE = (Finish("cpu", 900, 134, is_quiet=False), Finish("onnx", 800, 185))
TRUE = (Finish("cpu", 900, 430), Finish("onnx", 800, 185))


@pytest.fixture
def subject(monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setattr(choosing, "LEAST_BYTES", 0)
    monkeypatch.setattr(choosing, "_installed", lambda: ["openvino:1"])
    return open_subject(GOLDEN.model, LoadOptions(device=AUTO_DEVICE, n_context=GOLDEN.n_context))


def script(monkeypatch: pytest.MonkeyPatch, *results: tuple[Finish, ...]) -> list[object]:
    """Let races end like this, the last one for ever; the races that were run."""
    races: list[object] = []

    def raced(*given: object) -> tuple[Finish, ...]:
        races.append(given)
        return results[min(len(races), len(results)) - 1]

    monkeypatch.setattr(choosing, "compared", raced)
    return races


def starts(subject: Subject, path: Path, idle: float = 1.0) -> Callable[[], ChosenDevice]:
    """What a start of the program does."""
    return lambda: chosen_device(
        subject, read_topology(), OPTIONS, race="first", choices=Choices(path), idle=lambda: idle
    )


def test_the_cpu_is_always_there_and_what_takes_part_is_not_imported() -> None:
    code = (
        "import sys; from edgeinfer.engine.racing.choosing import entrant_kinds; print(entrant_kinds());"
        "assert not {'openvino', 'onnxruntime', 'onnx', 'llama_cpp', 'numba_cuda'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert entrant_kinds()[0] == "cpu"
    assert not {"reference", "null"} & set(entrant_kinds())


def test_a_race_is_run_once_and_remembered(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    races = script(monkeypatch, (Finish("cpu", 100, 10), Finish("openvino", 200, 20)))
    choices, topology = Choices(tmp_path / "devices.json"), read_topology()
    before = chosen_device(subject, topology, OPTIONS, race="never", choices=choices)
    first = chosen_device(subject, topology, OPTIONS, race="first", choices=choices)
    again = chosen_device(subject, topology, OPTIONS, race="first", choices=choices)
    assert before == ChosenDevice("cpu")
    assert first.device == again.device == "openvino"
    assert first.notice == "openvino is the fastest device here: 20 tok/s (cpu 10); --device chooses another"
    assert again.notice is None
    assert len(races) == 1
    monkeypatch.setattr(choosing, "_installed", lambda: ["openvino:2"])  # another version may be faster or slower
    chosen_device(subject, topology, OPTIONS, race="first", choices=choices)
    assert len(races) == 2


def test_a_false_result_of_a_busy_machine_does_not_stick(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    races = script(monkeypatch, FALSE, TRUE)
    start = starts(subject, tmp_path / "devices.json")
    first = start()
    assert first.device == "onnx"
    assert first.notice is not None
    assert "other programs were busy, so a later start compares again" in first.notice
    second = start()
    assert second.device == "cpu"
    assert second.notice == "cpu is the fastest device here: 430 tok/s (onnx 185); --device chooses another"
    assert start() == ChosenDevice("cpu")
    assert len(races) == 2


def test_a_machine_that_is_always_busy_is_not_asked_at_every_start(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seconds = tmp_path / "devices.json", [1e9]
    monkeypatch.setattr(choosing, "now_s", lambda: seconds[0])
    races = script(monkeypatch, FALSE)
    for _ in range(9):
        starts(subject, path)()
    assert len(races) == 3
    seconds[0] += 25 * 3600
    for _ in range(9):
        assert starts(subject, path)().device == "onnx"
    assert len(races) == 4
    seconds[0] += 25 * 3600
    starts(subject, path)()
    assert len(races) == 4
    seconds[0] += 25 * 3600
    starts(subject, path)()
    assert len(races) == 5


def test_a_race_is_not_repeated_while_the_machine_is_busy(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    races = script(monkeypatch, FALSE, TRUE)
    path = tmp_path / "devices.json"
    starts(subject, path)()
    assert starts(subject, path, idle=0.0)() == ChosenDevice("onnx")
    assert len(races) == 1
    assert starts(subject, path)().device == "cpu"


def test_answers_slower_than_the_second_device_was_have_the_race_repeated(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certain = tuple(replace(each, is_quiet=True) for each in FALSE)
    races, choices = script(monkeypatch, certain, TRUE), Choices(tmp_path / "devices.json")
    start = starts(subject, tmp_path / "devices.json")
    assert start().device == start().device == "onnx"

    def answer(decode_tok_s: float, idle: float = 1.0) -> None:
        fingerprint, cores = subject.fingerprint, read_topology().workers()[:1]
        given = fingerprint, "onnx", read_topology(), "f16", cores, decode_tok_s
        note_speed(*given, choices=choices, idle=lambda: idle)  # type: ignore[arg-type]

    def is_repeated() -> bool:
        before = len(races)
        start()
        return len(races) > before

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


def test_a_race_that_nobody_else_finishes_changes_no_choice(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, FALSE, (Finish("cpu", 1, 1),))
    start = starts(subject, tmp_path / "devices.json")
    assert [start().device, start()] == ["onnx", ChosenDevice("onnx")]


def test_choices_of_before_are_read(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, topology = tmp_path / "devices.json", read_topology()
    cores = topology.workers()[:1]
    key = choice_key(subject.fingerprint, topology, "f16", cores, ["openvino:1"])
    path.write_text(f'{{"{key}": "openvino"}}')
    monkeypatch.setattr(choosing, "compared", None)
    assert starts(subject, path)() == ChosenDevice("openvino")


def test_other_cores_and_another_kv_are_another_race(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is fastest with all cores may not be with one, or with keys and values in int8."""
    choices, raced = Choices(tmp_path / "devices.json"), list[tuple[DeviceOptions, str]]()
    topology = Mock(wraps=read_topology(), workers=lambda: (0, 1))
    monkeypatch.setattr(choosing, "fingerprint_of", lambda topology: "machine")

    def run(subject: Subject, options: DeviceOptions, kv: str, *others: object) -> tuple[Finish, ...]:
        raced.append((options, kv))
        return Finish("cpu", 100, 10), Finish(f"device-{len(raced)}", 200, 20)

    monkeypatch.setattr(choosing, "compared", run)
    manners: list[tuple[DeviceOptions, KVKind]] = [
        (DeviceOptions(), "f16"),
        (DeviceOptions(n_workers=1), "f16"),
        (DeviceOptions(cores=(1,)), "f16"),
        (DeviceOptions(), "int8"),
    ]
    for _ in range(2):
        found = [
            chosen_device(subject, topology, options, kv=kv, race="first", choices=choices).device
            for options, kv in manners
        ]
        assert found == ["device-1", "device-2", "device-3", "device-4"]
    assert raced == manners
    planned = DeviceOptions(2, (0, 1), decode_shares=(0.5, 0.5))  # a plan of the cpu's cores is not asked for
    assert chosen_device(subject, topology, planned, race="never", choices=choices).device == "device-1"


def test_alone_the_cpu_does_not_race(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_installed", list)
    monkeypatch.setattr(choosing, "compared", None)
    assert chosen_device(subject, read_topology(), OPTIONS, race="first") == ChosenDevice("cpu")


def test_the_cpu_runs_mixtures_of_experts_without_a_race(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "compared", None)
    mixture = open_subject(Golden.read("olmoe-f16").model, LoadOptions(device=AUTO_DEVICE, n_context=128))
    assert chosen_device(mixture, read_topology(), OPTIONS, race="first") == ChosenDevice("cpu")


def test_tiny_models_do_not_race(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(choosing, "compared", None)
    assert chosen_device(subject, read_topology(), OPTIONS, race="first") == ChosenDevice("cpu")


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
