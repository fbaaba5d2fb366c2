"""A balance that begins with a plan: right plans are kept, wrong ones are made good within 128 tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgeinfer.scheduling.workers.balance import Balance
from edgeinfer.scheduling.workers.shares import WHOLE
from tests.unit.scheduling.shared_machine import Machine, play

HYBRID = (1.0, 1.0, 1.0, 1.0, 0.5, 0.5)


def planned(speeds: tuple[float, ...]) -> tuple[float, ...]:
    """Shares in proportion to speeds."""
    return tuple(speed / sum(speeds) for speed in speeds)


def test_the_first_step_follows_the_plan_of_its_kind():
    balance = Balance(4, decode_shares=(0.5, 0.5, 0, 0), prefill_shares=(0.3, 0.3, 0.2, 0.2))
    decode = balance.assign(1, 0)
    assert decode.workers == (0, 1)
    assert [stop - start for start, stop in pairwise(decode.cuts)] == [WHOLE // 2] * 2
    prefill = balance.assign(512, 0)
    assert prefill.workers == (0, 1, 2, 3)
    shares = [(stop - start) / WHOLE for start, stop in pairwise(prefill.cuts)]
    assert shares == pytest.approx([0.3, 0.3, 0.2, 0.2], abs=1e-4)


@pytest.mark.parametrize("n_tokens", [1, 4, 512])
@pytest.mark.parametrize("wrong", [2.0, 0.5])
@pytest.mark.parametrize("core", [0, 5])
def test_a_core_that_was_rated_wrong_by_two_costs_nothing_after_128_tokens(
    n_tokens: int, wrong: float, core: int
) -> None:
    rated = tuple(speed * (wrong if number == core else 1) for number, speed in enumerate(HYBRID))
    right = Balance(6, planned(HYBRID), planned(HYBRID))
    misled = Balance(6, planned(rated), planned(rated))
    n_steps = 128 if n_tokens < 128 else 1
    before = play(Machine(HYBRID), misled, n_steps, n_tokens).seconds
    after = play(Machine(HYBRID), misled, 256, n_tokens).mean_s()
    best = play(Machine(HYBRID), right, 256, n_tokens).mean_s()
    assert before[0] > 1.04 * best  # the plan was wrong indeed
    assert best / after >= 0.95


@pytest.mark.parametrize("n_planned", [1, 2, 3])
def test_a_plan_with_too_few_cores_takes_the_others_in(n_planned: int) -> None:
    """A profile that underrated memory keeps cores out which help; trials bring them back."""
    shares = tuple(1 / n_planned if worker < n_planned else 0.0 for worker in range(4))
    machine, balance = Machine((1.0,) * 4), Balance(4, shares, shares)
    played = play(machine, balance, 128)
    assert played.sizes[0] == n_planned
    best = play(Machine((1.0,) * 4), Balance(4), 200).mean_s()
    assert best / play(machine, balance, 200).mean_s() >= 0.95
