"""What products prefetch: chosen apart by the size of units and of models, and remembered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout.records import A_UNIT, PRODUCT
from edgeinfer.backends.cpu.workers import prefetch
from edgeinfer.backends.cpu.workers.prefetch import DISTANCE, LARGE, LEAST_BYTES, choose_ahead
from edgeinfer.backends.cpu.workers.tape import Call

NOTHING: frozenset[str] = frozenset()


def product(unit_bytes: int, n_bytes: int) -> Call:
    """A product over that many bytes of weights."""
    args = np.zeros(1, PRODUCT)
    args["unit_bytes"], args["n_units"] = unit_bytes, n_bytes // unit_bytes
    return Call(catalogue.RMS_NORM, args, NOTHING, NOTHING, "rows")


@dataclass
class Machine:
    """Takes `costs` of a round with small and with large units prefetched, 1.0 without, and remembers notes."""

    costs: dict[bool, float]
    n_workers: int = 2
    notes: dict[str, str] = field(default_factory=dict)
    n_rounds: int = 0

    def note(self, name: str) -> str | None:
        return self.notes.get(name)

    def keep_note(self, name: str, text: str) -> None:
        self.notes[name] = text

    def seconds(self, tape: object, calls: list[Call], pool: object, ahead: int) -> float:
        self.n_rounds += 1
        return self.costs[int(calls[0].arguments["unit_bytes"][0]) > LARGE] if ahead else 1.0


def chosen(machine: Any, calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(prefetch, "Tape", lambda *_: None)
    monkeypatch.setattr(prefetch, "_seconds", machine.seconds)
    choose_ahead(calls, machine, machine)
    return [int(call.arguments["ahead"][0]) for call in calls]


SMALL, BIG = LARGE // 2, LARGE * 2


@pytest.mark.parametrize(("costs", "expected"), [((0.8, 1.2), [A_UNIT, 0]), ((1.2, 0.8), [0, DISTANCE])])
def test_small_and_large_units_are_apart(
    costs: tuple[float, float], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [product(SMALL, LEAST_BYTES), product(BIG, LEAST_BYTES)]
    assert chosen(Machine(dict(zip((False, True), costs, strict=True))), calls, monkeypatch) == expected


def test_too_few_units_follow_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [product(SMALL, LEAST_BYTES), product(BIG, LEAST_BYTES // 2)]
    assert chosen(Machine({False: 1.2, True: 0.8}), calls, monkeypatch) == [0, 0]
    assert chosen(Machine({False: 0.8, True: 1.2}), calls, monkeypatch) == [A_UNIT, DISTANCE]


def test_an_answer_is_kept_for_models_of_the_same_size(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, small_model = Machine({False: 0.8, True: 0.8}), [product(SMALL, LEAST_BYTES)]
    chosen(machine, small_model, monkeypatch)
    n_rounds = machine.n_rounds
    chosen(machine, small_model, monkeypatch)
    assert machine.n_rounds == n_rounds
    machine.costs[False] = 1.2  # memory, where the small model was in a cache
    assert chosen(machine, [product(SMALL, 8 * LEAST_BYTES)], monkeypatch) == [0]
    assert chosen(machine, small_model, monkeypatch) == [A_UNIT]
