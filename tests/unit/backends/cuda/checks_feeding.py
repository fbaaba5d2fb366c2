"""Streamed weights: which load is in which half when a stage runs, for any number of loads and of stages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from edgeinfer.backends.cuda.placing import StageFeeding


class Mark:
    """An event that notes nothing."""

    def record(self, stream: object) -> None: ...

    def wait(self, stream: object) -> None: ...


class Maker:
    """Makes streams and events."""

    def stream(self) -> None:
        return None

    def event(self) -> Mark:
        return Mark()


@dataclass
class Held:
    """Loads by stage, what the halves hold and every load that was sent."""

    sent: dict[str, list[int]]
    halves: list[int | None] = field(default_factory=lambda: [None, None])
    log: list[int] = field(default_factory=list)

    @property
    def n_sent(self) -> int:
        return sum(map(len, self.sent.values()))

    def send(self, number: int, stream: object) -> None:
        self.log.append(number)
        self.halves[number % 2] = number


def stages_of(n_loads: int, pairs: bool) -> tuple[list[str], dict[str, list[int]]]:
    """Stages of which every third needs nothing, and the loads of the others, two at a time if `pairs`."""
    names, loads, first = [], {}, 0
    while first < n_loads:
        name = f"stage {len(names)}"
        names.append(name)
        if len(names) % 3:
            count = min(2 if pairs else 1, n_loads - first)
            loads[name] = list(range(first, first + count))
            first += count
    return names, loads


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("n_loads", range(1, 9))
def test_every_stage_finds_its_weights_and_none_is_waited_for(n_loads: int, pairs: bool) -> None:
    """After the first step a load is under way before its stage is asked for, and sent once a step at most."""
    names, loads = stages_of(n_loads, pairs)
    held = Held(loads)
    feeding = StageFeeding(Maker(), held)  # type: ignore[arg-type]
    early: list[bool] = []

    def start(name: str) -> None:
        for number in loads.get(name, ()):
            assert held.halves[number % 2] == number

    for step in range(5):
        held.log.clear()
        for name in names:
            early.append(all(held.halves[number % 2] == number for number in loads.get(name, ())))
            feeding.run([name], start, None)  # type: ignore[arg-type]
        if step:
            assert all(early)
            assert len(held.log) == len(set(held.log)) == (n_loads if n_loads > 3 else {1: 0, 2: 0, 3: 2}[n_loads])
        early.clear()


def test_steps_that_are_broken_off_anywhere_do_no_harm() -> None:
    rng = np.random.default_rng(3)
    for n_loads in range(1, 9):
        names, loads = stages_of(n_loads, pairs=bool(n_loads % 2))
        held = Held(loads)
        feeding = StageFeeding(Maker(), held)  # type: ignore[arg-type]

        def start(name: str, loads: dict[str, list[int]] = loads, held: Held = held) -> None:
            for number in loads.get(name, ()):
                assert held.halves[number % 2] == number

        for _ in range(40):
            first, last = sorted(rng.integers(0, len(names) + 1, 2).tolist())
            feeding.run(names[first:last], start, None)  # type: ignore[arg-type]
