"""The first look: once per machine, in a terminal alone, never in the way of an answer."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.app.opening import first_look
from edgeinfer.app.plans import measured as machine_profile
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.measure.profiles import ProfileStore, fingerprint_of
from edgeinfer.engine.opening.comparison import Compared, Comparison
from edgeinfer.engine.opening.device_choice import ChosenDevice
from edgeinfer.errors import DeviceUnavailable
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.steps import Progress
from tests.unit.scheduling.profiles import machine


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The formats of each probe."""
    asked: list[tuple[str, ...]] = []

    def measured(*, short: bool, formats: tuple[str, ...] = (), **others: object) -> object:
        assert short
        asked.append(formats)
        return replace(machine(), fingerprint=fingerprint_of(read_topology()), measured="now", idle_share=0.99)

    monkeypatch.setattr(machine_profile, "measured_profile", measured)
    return asked


@pytest.fixture
def llm(home: Path, tiny_model: Path):
    with load(tiny_model, device="reference") as found:
        found.info = replace(found.info, device="cpu")
        yield found


def terminal(monkeypatch: pytest.MonkeyPatch, is_one: bool) -> None:
    monkeypatch.setattr(first_look.sys.stderr, "isatty", lambda: is_one, raising=False)


def test_a_terminal_is_looked_at_once(llm: LLM, probed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, is_one=True)
    thread = first_look.look_once(llm)
    assert thread is not None
    thread.join()
    assert probed == [("F32",)]
    assert ProfileStore().find(fingerprint_of(read_topology())) is not None
    assert first_look.look_once(llm) is None


def test_a_script_is_not_kept_waiting(llm: LLM, probed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, is_one=False)
    assert first_look.look_once(llm) is None
    assert probed == []


def test_other_devices_are_not_looked_at(
    llm: LLM, probed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch, is_one=True)
    llm.info = replace(llm.info, device="reference")
    assert first_look.look_once(llm) is None


def test_a_machine_that_cannot_be_measured_answers_all_the_same(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch, is_one=True)

    def refuse(**options: object) -> None:
        raise DeviceUnavailable("this CPU has no f16c")

    monkeypatch.setattr(machine_profile, "measured_profile", refuse)
    thread = first_look.look_once(llm)
    assert thread is not None
    thread.join()


def test_devices_are_compared_before_the_machine_is_measured(
    llm: LLM, probed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch, is_one=True)
    order: list[str] = []

    def choose(progress: Progress) -> ChosenDevice:
        progress("comparing devices, once: cpu", 0, 6)
        return ChosenDevice("cpu", "cpu is the fastest device here")

    llm.comparison = Comparison(choose, lambda: 1e6 + time.monotonic(), "cpu")
    found: list[Compared] = []
    thread = first_look.look_once(llm, lambda what, done, total: order.append(what), found.append)
    assert thread is not None
    thread.join()
    assert [each.notice for each in found] == ["cpu is the fastest device here"]
    assert order == ["comparing devices, once: cpu; Ctrl-C leaves", "measuring this machine, once; Ctrl-C leaves"]
    assert probed == [("F32",)]
    assert first_look.look_once(llm) is None


def test_what_an_answer_disturbs_is_done_after_it(
    llm: LLM, probed: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch, is_one=True)
    idle_s = [1e6, 0.0]  # at its start, and when it looks

    def choose(progress: Progress) -> ChosenDevice:
        progress("comparing devices, once: cpu", 0, 6)
        raise AssertionError("an answer came first")

    llm.comparison = Comparison(choose, lambda: idle_s.pop(0), "cpu")
    thread = first_look.look_once(llm)
    assert thread is not None
    thread.join()
    assert probed == []
    assert llm.comparison.is_due
