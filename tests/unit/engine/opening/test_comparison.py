"""Devices are compared after an answer: for the next start, and never in the way of another answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from edgeinfer.engine import loading
from edgeinfer.engine.loading import load
from edgeinfer.engine.opening import device_choice
from edgeinfer.engine.opening.comparison import Comparison
from edgeinfer.engine.opening.device_choice import Choices, ChosenDevice, CompareDevices, DeviceChoice, chosen_device
from edgeinfer.engine.run.evaluators import Subject, open_subject
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.load_options import LoadOptions
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.setting_values import Race
from edgeinfer.steps import Progress, no_progress
from tests.golden.goldens import Golden
from tests.unit.engine.opening.test_device_choice import OPTIONS

GOLDEN = Golden.read("llama-q8_0")
FASTER = DeviceChoice("onnx", runner_up_tok_s=130.0), "onnx is the fastest device here"


class Clock:
    """Seconds since something was generated, as long as nobody says that an answer begins."""

    def __init__(self) -> None:
        self.idle_s = 1e6

    def __call__(self) -> float:
        return self.idle_s


def racing(races: list[Progress], progress: Progress) -> CompareDevices:
    """Comparisons, all of which another device wins."""

    def compare() -> tuple[DeviceChoice, str | None]:
        races.append(progress)
        progress("comparing devices, once: cpu", 0, 6)
        return FASTER

    return compare


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    """The progress of each comparison."""
    found: list[Progress] = []
    monkeypatch.setattr(device_choice, "LEAST_BYTES", 0)
    monkeypatch.setattr(device_choice, "_installed", lambda: ["onnx:1"])
    monkeypatch.setattr(loading, "_comparing", lambda *given: racing(found, given[-1]))
    return found


def start(races: list[Progress], folder: Path, race: Race) -> ChosenDevice:
    compare = racing(races, no_progress)
    chosen = {"race": race, "compare": compare, "choices": Choices(folder / "devices")}
    return chosen_device(subject(), read_topology(), OPTIONS, **chosen)  # type: ignore[arg-type]


def subject() -> Subject:
    return open_subject(GOLDEN.model, LoadOptions(device=AUTO_DEVICE, n_context=GOLDEN.n_context))


def test_a_small_model_answers_before_devices_are_compared(races: list[Progress], tmp_path: Path) -> None:
    chosen = start(races, tmp_path, "after")
    assert chosen == ChosenDevice(AUTO_DEVICE, compares_later=True)
    assert races == []


def test_a_large_model_is_compared_first(
    races: list[Progress], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_choice, "ANSWER_FIRST_BYTES", 1)
    chosen = start(races, tmp_path, "after")
    assert (chosen.device, chosen.compares_later) == ("onnx", False)


def test_what_is_known_is_not_compared_again(races: list[Progress], tmp_path: Path) -> None:
    start(races, tmp_path, "first")
    assert start(races, tmp_path, "after") == ChosenDevice("onnx")
    assert len(races) == 1


@pytest.mark.usefixtures("home")
def test_a_loaded_model_compares_for_the_next_start(races: list[Progress]) -> None:
    with load(GOLDEN.model, race="after", n_context=128, spec="off") as llm:
        assert llm.telemetry.device == AUTO_DEVICE
        assert races == []
        assert llm.comparison is not None
        for piece in llm.complete("hello", max_tokens=2):
            assert isinstance(piece, str)
        found = llm.comparison.run()
        assert found is not None
        assert found.changes
        assert found.notice == "onnx is the fastest device here; it is used from the next start on"
        assert not llm.comparison.is_due
        assert len(races) == 1
        key = device_choice.choice_key(subject().fingerprint, read_topology(), "f16", llm.info.cores, ["onnx:1"])
    kept = Choices().find(key)
    assert kept is not None
    assert kept.device == "onnx"


@pytest.mark.usefixtures("home")
def test_two_programs_do_not_compare_at_once(races: list[Progress]) -> None:
    with load(GOLDEN.model, race="after", n_context=128, spec="off") as llm, Choices().alone():
        assert llm.comparison is not None
        assert llm.comparison.run() is None
        assert not llm.comparison.is_due
    assert races == []


@pytest.mark.usefixtures("home")
def test_nothing_is_made_in_idle_time_while_devices_are_compared(races: list[Progress]) -> None:
    with load(GOLDEN.model, race="after", n_context=128, spec="off") as llm:
        assert llm.comparison is not None
        seen: list[float] = []
        llm.comparison.run(lambda what, done, total: seen.append(llm._idle_s()))
        assert seen
        assert set(seen) == {0.0}


def test_an_answer_ends_the_comparison_which_is_made_after_it() -> None:
    clock, told = Clock(), threading.Event()

    def choose(progress: Progress) -> ChosenDevice:
        progress("comparing", 0, 1)
        told.set()
        clock.idle_s = 0.0 if first else 1e6  # somebody asks
        progress("comparing", 0, 1)
        return ChosenDevice("onnx", "onnx is the fastest device here")

    comparison, first = Comparison(choose, clock, "cpu"), True
    assert comparison.run() is None
    assert told.is_set()
    assert comparison.is_due
    assert not comparison.runs
    clock.idle_s, first = 1e6, False
    found = comparison.run()
    assert found is not None
    assert found.changes


def test_the_device_in_use_may_stay() -> None:
    found = Comparison(lambda progress: ChosenDevice("cpu", "cpu is the fastest device here"), Clock(), "cpu").run()
    assert found is not None
    assert (found.notice, found.changes) == ("cpu is the fastest device here", False)


def test_a_comparison_that_fails_is_not_made_again() -> None:
    def refuse(progress: Progress) -> ChosenDevice:
        raise DeviceUnavailable("no")

    comparison = Comparison(refuse, Clock(), "cpu")
    assert comparison.run() is None
    assert not comparison.is_due
