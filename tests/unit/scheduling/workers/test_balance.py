"""The balance on simulated machines: unequal cores, taken cores, equal idle cores; every run is deterministic."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgeinfer.scheduling.workers.balance import WHOLE, Balance, candidate_sizes
from tests.unit.scheduling.shared_machine import Machine, fixed_s, play

PHASES = pytest.mark.parametrize("n_tokens", [1, 4, 32, 512], ids=["decode", "few", "some", "prefill"])
HYBRID = (1.0, 1.0, 1.0, 1.0, 0.5, 0.5)


def shares(cuts: tuple[int, ...]) -> list[float]:
    return [(stop - start) / WHOLE for start, stop in pairwise(cuts)]


@PHASES
@pytest.mark.parametrize("n_workers", [2, 3, 4, 8])
def test_equal_idle_cores_keep_equal_shares_and_lose_next_to_nothing(n_workers: int, n_tokens: int) -> None:
    machine = Machine((1.0,) * n_workers)
    fixed = fixed_s(machine, tuple(range(n_workers)), n_tokens=n_tokens)
    played = play(machine, Balance(n_workers), 1000, n_tokens)
    even = tuple(round(WHOLE * worker / n_workers) for worker in range(n_workers + 1))
    assert {assignment.cuts for assignment in played.assignments if len(assignment.workers) == n_workers} == {even}
    assert played.mean_s() < 1.01 * fixed


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_a_noisy_machine_with_idle_cores_loses_next_to_nothing(noise: float) -> None:
    """Steps vary by a tenth, one in twelve is dear: that is no program that took a core."""
    machine, balance = Machine((1.0, 1.0), noise=noise, bursts=1 / 12), Balance(2)
    played = play(machine, balance, 2000)
    assert played.sizes.count(1) <= 20
    machine.taken = {1}
    assert play(machine, balance, 64).sizes[32:].count(1) >= 28


def test_a_first_step_that_took_long_is_not_what_is_usual() -> None:
    """Nor is any other size better because of it."""
    machine, balance = Machine((1.0, 1.0)), Balance(2)
    sizes = []
    for number in range(100):
        assignment = balance.assign(1, 0)
        seconds, busy = machine.step(assignment, 1)
        balance.record(seconds * (12 if number < 8 else 1), busy)
        sizes.append(len(assignment.workers))
    assert sizes.count(1) <= 3


def test_a_worker_that_did_badly_alone_is_not_the_first_choice_again() -> None:
    """Time lost at barriers shows in nobody's busy time, so only a trial tells which core was taken."""
    balance = Balance(2)
    chosen = []
    for number in range(60):
        assignment = balance.assign(512, number * 512)
        alone = len(assignment.workers) == 1
        slow = 4.0 if number >= 20 and (0 in assignment.workers and assignment.pinned) else 1.0
        balance.record((2.0 if alone else 1.0) * slow, [1.0] * len(assignment.workers))
        if alone:
            chosen.append(assignment.workers)
    assert chosen[:2] == [(0,), (1,)]


@PHASES
@pytest.mark.parametrize("slowness", [1.5, 2.0, 3.0])
def test_unequal_cores_reach_the_sum_of_their_rates(slowness: float, n_tokens: int) -> None:
    machine = Machine((1.0, 1 / slowness))
    ideal_s = fixed_s(Machine((1.0,)), (0,), n_tokens=n_tokens) / (1 + 1 / slowness)
    even_s = fixed_s(machine, (0, 1), n_tokens=n_tokens)
    played = play(machine, Balance(2), 400, n_tokens)
    assert ideal_s / played.mean_s(50) > 0.95
    if slowness >= 2:
        assert even_s / played.mean_s(50) > 1.3
    both = [assignment.cuts for assignment in played.assignments[100:] if len(assignment.workers) == 2]
    assert shares(both[-1])[1] == pytest.approx(1 / (1 + slowness), rel=0.06)
    assert len(set(both)) <= 6  # they settle
    moves = [second[1] - first[1] for first, second in pairwise(both) if first != second]
    assert all(abs(move) < 0.03 * WHOLE for move in moves)


def test_two_kinds_of_cores_share_by_speed_and_all_take_part() -> None:
    machine = Machine((1.0,) * 4 + (0.5,) * 4)
    played = play(machine, Balance(8), 600)
    last = [assignment for assignment in played.assignments if len(assignment.workers) == 8][-1]
    assert shares(last.cuts) == pytest.approx([1 / 6] * 4 + [1 / 12] * 4, rel=0.08)
    assert played.sizes[-100:].count(8) >= 95


def test_shares_return_when_a_slow_core_recovers() -> None:
    machine, balance = Machine((1.0, 0.5)), Balance(2)
    play(machine, balance, 300)
    machine.speeds = (1.0, 1.0)
    played = play(machine, balance, 64)
    assert shares(played.last.cuts) == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.parametrize("looks", [12, 0], ids=["told of free cores", "not told"])
@pytest.mark.parametrize("core", [0, 1])
def test_a_taken_core_is_left_and_comes_back(core: int, looks: int) -> None:
    machine, balance = Machine((1.0, 1.0)), Balance(2)
    play(machine, balance, 200, looks=looks)
    machine.taken = {core}
    best_s = min(fixed_s(machine, (0, 1)), fixed_s(machine, (0,)))
    played = play(machine, balance, 600, looks=looks)
    assert best_s / played.mean_s() > (0.95 if looks else 0.9)
    assert played.sizes[20:40].count(1) >= (16 if looks else 12)
    machine.taken = set()
    returned = play(machine, balance, 200, looks=looks)
    assert returned.sizes[64:].count(2) >= 125
    assert shares(returned.last.cuts) == [0.5, 0.5]


def test_a_core_taken_from_the_start() -> None:
    machine = Machine((1.0, 1.0), taken={0})
    played = play(machine, Balance(2), 300)
    assert played.sizes[-200:].count(1) >= 190


@pytest.mark.parametrize("core", [0, 3, 7])
def test_of_many_cores_only_the_taken_one_is_left_out(core: int) -> None:
    machine, balance = Machine((1.0,) * 8), Balance(8)
    play(machine, balance, 200)
    machine.taken = {core}
    played = play(machine, balance, 400)
    without = tuple(worker for worker in range(8) if worker != core)
    assert [assignment.workers for assignment in played.assignments[-50:]].count(without) >= 45
    assert fixed_s(machine, without) / played.mean_s(20) > 0.95
    machine.taken = set()
    assert play(machine, balance, 200).sizes[64:].count(8) >= 125


def test_a_worker_pool_that_shares_too_little_bandwidth_shrinks() -> None:
    machine = Machine((1.0,) * 8, saturating=3)
    machine.barrier_s = 0.0002
    best_s = min(fixed_s(machine, tuple(range(size))) for size in candidate_sizes(8))
    played = play(machine, Balance(8), 800)
    assert best_s / played.mean_s(400) > 0.97
    assert max(played.sizes[400:]) < 8


def test_phases_learn_apart() -> None:
    """Shares that decoding found do not move the shares of prefill."""
    machine, balance = Machine((1.0, 0.5)), Balance(2)
    play(machine, balance, 200, n_tokens=1)
    assert shares(balance.assign(512, 0).cuts) == [0.5, 0.5]
    play(Machine((1.0, 1.0)), balance, 20, n_tokens=512)
    assert shares(balance.assign(512, 0).cuts) == [0.5, 0.5]
    assert shares(balance.assign(1, 0).cuts)[1] == pytest.approx(1 / 3, rel=0.06)


def test_a_growing_context_is_no_alarm() -> None:
    machine = Machine((1.0, 1.0), depth_s=0.000002)
    played = play(machine, Balance(2), 4000)
    assert played.seconds[-1] > 2 * played.seconds[0]
    assert played.sizes.count(1) < 30


def test_passes_of_changing_length_are_no_alarm() -> None:
    machine, balance = Machine((1.0, 1.0)), Balance(2)
    sizes = []
    for number in range(1500):
        n_tokens = (1, 2, 8, 3, 64, 17, 512, 100)[number * 7 % 8]
        assignment = balance.assign(n_tokens, number)
        balance.record(*machine.step(assignment, n_tokens))
        sizes.append(len(assignment.workers))
    assert sizes.count(1) < 30


def test_single_slow_steps_do_not_change_the_worker_pool() -> None:
    machine, balance = Machine((1.0, 1.0)), Balance(2)
    sizes = []
    for number in range(1000):
        assignment = balance.assign(1, number)
        seconds, busy = machine.step(assignment, 1)
        balance.record(seconds * (3 if number % 25 == 0 else 1), busy)
        sizes.append(len(assignment.workers))
    assert sizes.count(1) < 12


@PHASES
@pytest.mark.parametrize("most", [1, 2, 3, 5, 6, 8])
def test_no_step_gets_more_workers_than_the_limit(most: int, n_tokens: int) -> None:
    """Whatever is going on: cores that are taken and freed, alarms, trials."""
    machine, balance = Machine((1.0,) * 8), Balance(8)
    play(machine, balance, 100, n_tokens=n_tokens)
    balance.limit(most)
    sizes = []
    for taken in (set(), {0, 1}, set()):
        machine.taken = taken
        sizes += play(machine, balance, 200, n_tokens=n_tokens).sizes
    assert sizes[0] == max(sizes) == most


def test_a_limit_that_is_lifted_gives_the_workers_back() -> None:
    machine, balance = Machine((1.0,) * 8), Balance(8)
    play(machine, balance, 100)
    for most, expected in ((6, 6), (4, 4), (7, 7), (1, 1), (20, 8)):
        balance.limit(most)
        assert play(machine, balance, 1).sizes == [expected]
        assert play(machine, balance, 300).sizes.count(expected) >= 280


def test_a_worker_pool_that_shrank_by_itself_does_not_grow_with_the_limit() -> None:
    machine, balance = Machine((1.0,) * 8, saturating=1), Balance(8)
    machine.barrier_s = 0.001
    play(machine, balance, 1500)
    balance.limit(4)
    assert play(machine, balance, 600).sizes[-1] == 1
    balance.limit(8)
    assert play(machine, balance, 1).sizes == [1]


def test_a_limit_is_no_reason_to_ask_for_free_cores() -> None:
    machine, balance = Machine((1.0,) * 4), Balance(4)
    balance.limit(2)
    play(machine, balance, 50)
    assert not balance.wants_free_cores


def test_lower_ranks_come_first_however_fast_the_others_are() -> None:
    machine, balance = Machine((1.0, 1.0, 0.5, 0.5)), Balance(4)
    play(machine, balance, 200)
    balance.limit(2, (1, 1, 0, 0))
    limited = play(machine, balance, 200)
    assert {assignment.workers for assignment in limited.assignments if len(assignment.workers) == 2} == {(2, 3)}
    assert all(assignment.pinned for assignment in limited.assignments)
    balance.limit(2)
    assert play(machine, balance, 1).last.workers == (0, 1)


def test_one_worker_goes_where_the_system_puts_it() -> None:
    balance = Balance(1)
    assignment = balance.assign(1, 0)
    balance.record(0.1, [1.0])
    assert balance.assign(1, 1) is assignment
    assert (assignment.workers, assignment.cuts, assignment.pinned) == ((0,), (0, WHOLE), False)
    assert not balance.wants_free_cores


def test_an_unchanged_assignment_is_the_same_object() -> None:
    machine, balance = Machine((1.0, 1.0)), Balance(2)
    first = balance.assign(1, 0)
    balance.record(*machine.step(first, 1))
    assert balance.assign(1, 1) is first


@pytest.mark.parametrize(
    ("n_workers", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (4, (1, 2, 3, 4)),
        (5, (1, 2, 4, 5)),
        (8, (1, 2, 4, 7, 8)),
        (12, (1, 2, 4, 8, 11, 12)),
        (16, (1, 2, 4, 8, 15, 16)),
    ],
)
def test_candidate_sizes(n_workers: int, sizes: tuple[int, ...]) -> None:
    assert candidate_sizes(n_workers) == sizes


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
