"""Costs of passes are kept with the compiled loops, and measured again if the machine was busy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeinfer.engine.measure.idle import QuietMeter
from edgeinfer.engine.speculation import kept_costs
from edgeinfer.engine.speculation.costs import MeasuredCosts, best_of
from edgeinfer.engine.speculation.kept_costs import AGAIN_BYTES, MOST_DISTURBED, KeptCosts
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.offload.weights import OffloadedWeights

DISTURBED = MeasuredCosts({1: 0.004, 2: 0.108}, 768, {1: 0.005, 2: 0.006})
QUIET = MeasuredCosts({1: 0.005, 2: 0.006, 4: 0.007}, 768, {1: 0.006, 2: 0.009})
LIMITS = SimpleNamespace(kv="q8_0", stored=None)
EXECUTOR: Any = SimpleNamespace(device="cpu", n_workers=2, limits=LIMITS, resident_bytes=AGAIN_BYTES)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What is measured (`costs`), whether undisturbed (`is_quiet`), and how often it was (`n_measured`)."""
    machine = SimpleNamespace(costs=DISTURBED, is_quiet=False, n_measured=0)

    def measured(*_: object) -> MeasuredCosts:
        machine.n_measured += 1
        return machine.costs

    monkeypatch.setattr(kept_costs, "measure_costs", measured)
    monkeypatch.setattr(QuietMeter, "end", lambda meter: machine.is_quiet)
    return machine


def opened(folder: Path) -> KeptCosts:
    """The costs as another process finds them."""
    return KeptCosts(KernelLibrary(folder), EXECUTOR, "model")


def test_costs_of_a_quiet_machine_are_measured_once(tmp_path: Path, machine: SimpleNamespace) -> None:
    machine.costs, machine.is_quiet = QUIET, True
    assert not opened(tmp_path).are_known
    for _ in range(3):
        assert opened(tmp_path).known(100) == QUIET
    assert opened(tmp_path).are_known
    assert machine.n_measured == 1


def test_costs_of_a_busy_machine_are_replaced_by_those_of_a_quiet_one(tmp_path: Path, machine: SimpleNamespace) -> None:
    assert opened(tmp_path).known(100) == DISTURBED
    assert opened(tmp_path).are_known  # a model that is opened uses them until they are better
    machine.costs, machine.is_quiet = QUIET, True
    for _ in range(2):
        assert opened(tmp_path).known(100) == QUIET
    assert machine.n_measured == 2


def test_a_machine_that_is_never_quiet_keeps_the_best_of_a_few(tmp_path: Path, machine: SimpleNamespace) -> None:
    opened(tmp_path).known(100)
    machine.costs = QUIET
    for _ in range(MOST_DISTURBED + 2):
        found = opened(tmp_path).known(100)
    assert machine.n_measured == MOST_DISTURBED
    assert found == MeasuredCosts({1: 0.004, 2: 0.006, 4: 0.007}, 768, {1: 0.005, 2: 0.006})


def test_large_models_are_not_measured_again(tmp_path: Path, machine: SimpleNamespace) -> None:
    large: Any = SimpleNamespace(**{**vars(EXECUTOR), "resident_bytes": AGAIN_BYTES + 1})
    for _ in range(2):
        assert KeptCosts(KernelLibrary(tmp_path), large, "model").known(100) == DISTURBED
    assert machine.n_measured == 1


NOTHING = '{"first": {}, "depth": 0, "deep": {}, "n_disturbed": 0}'


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", NOTHING, "{" * 99999], ids=["empty", "object", "list", "none", "deep"]
)
def test_a_damaged_note_is_measured_anew(tmp_path: Path, machine: SimpleNamespace, text: str) -> None:
    kept = opened(tmp_path)
    KernelLibrary(tmp_path).keep_note(kept._name, text)
    assert not kept.are_known
    assert kept.known(100) == DISTURBED


def test_depths_that_differ_are_not_mixed() -> None:
    shallow = MeasuredCosts({1: 0.004}, 0, {})
    assert best_of(QUIET, shallow) == MeasuredCosts({1: 0.004, 2: 0.006, 4: 0.007}, 0, {})
    assert best_of(shallow, QUIET).deep == QUIET.deep


def test_costs_of_a_streamed_model_hold_for_about_as_much_memory(tmp_path: Path, machine: SimpleNamespace) -> None:
    """Without --ram it depends on what is free, which is never twice the same."""
    path = tmp_path / "model.bundles"
    path.write_bytes(bytes(1 << 20))

    def held(pinned_bytes: int) -> None:
        stored = OffloadedWeights(path, "model", frozenset(), pinned_bytes, 1000, 4)
        limits = SimpleNamespace(kv="q8_0", stored=stored)
        executor: Any = SimpleNamespace(**{**vars(EXECUTOR), "limits": limits})
        KeptCosts(KernelLibrary(tmp_path), executor, "model").known(100)

    for pinned_bytes in (400_000, 410_000, 390_000):
        held(pinned_bytes)
    assert machine.n_measured == 1
    held(800_000)
    assert machine.n_measured == 2
    held(1 << 20)
    assert machine.n_measured == 3
