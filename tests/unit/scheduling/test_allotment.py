"""Whose turn it is: bounds that always hold, closed forms, and a load on a virtual clock with measured times."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.scheduling.allotment import (
    AGED_S,
    CALM_CHUNK_S,
    CALM_SLOWED,
    CHUNK_S,
    LEAST_CHUNK,
    MOST_STRANGE,
    PATIENCE,
    SLOWED,
    STALL_S,
    Pace,
    PassRoom,
    Wish,
    allot,
    rank,
)

MEASURED = {1: 2.2e-3, 2: 2.75e-3, 4: 3.85e-3, 5: 4.4e-3, 8: 6.04e-3, 16: 7.5e-3, 32: 13.7e-3, 64: 29.5e-3, 128: 47e-3}
"""Seconds of passes of SmolLM2-135M Q4_1 over tokens of several sequences, two cores with AMX."""
ROOM = PassRoom(0, 256, 64)
wishes_strategy = st.lists(
    st.tuples(st.booleans(), st.one_of(st.just(1), st.integers(2, 5000)), st.integers(0, 50)), min_size=1, max_size=90
)


def paced(points: dict[int, float]) -> Pace:
    pace = Pace()
    for size, seconds in points.items():
        pace.observe(size, seconds)
    return pace


REAL = paced(MEASURED)


def seconds_of(n_tokens: int) -> float:
    found = REAL.seconds(n_tokens)
    assert found is not None
    return found


def decoding(key: int, *, interactive: bool = True, last: int = 0) -> Wish:
    return Wish(key, interactive, 1, last)


@given(wishes_strategy, st.sampled_from([{}, {1: 2e-3}, MEASURED]), st.integers(1, 256), st.integers(1, 64))
def test_a_pass_is_never_too_large_and_never_empty(
    wanted: list[tuple[bool, int, int]], points: dict[int, float], max_tokens: int, max_outputs: int
) -> None:
    wishes = [Wish(key, *each) for key, each in enumerate(wanted)]
    found = allot(wishes, paced(points), PassRoom(60, max_tokens, max_outputs))
    assert found
    assert sum(found.values()) <= max_tokens
    assert len(found) <= max_outputs
    assert all(1 <= n <= wishes[key].n_missing for key, n in found.items())


@given(wishes_strategy, st.sampled_from([{}, {1: 2e-3}, MEASURED]), st.data())
def test_prompts_that_need_outputs_have_no_more_than_there_are(
    wanted: list[tuple[bool, int, int]], points: dict[int, float], data: st.DataObject
) -> None:
    silent = [data.draw(st.one_of(st.none(), st.integers(0, n_missing - 1))) for _, n_missing, _ in wanted]
    wishes = [Wish(key, *each, n_silent) for key, (each, n_silent) in enumerate(zip(wanted, silent, strict=True))]
    found = allot(wishes, paced(points), PassRoom(60, 256, 64))
    n_outputs = [1 if silent[key] is None else max(1, n_tokens - silent[key]) for key, n_tokens in found.items()]
    assert found
    assert sum(n_outputs) <= 64
    assert all(1 <= n <= wishes[key].n_missing for key, n in found.items())


@given(wishes_strategy, st.sampled_from([{}, {1: 2e-3}, MEASURED]))
def test_who_is_watched_goes_on_in_every_pass(wanted: list[tuple[bool, int, int]], points: dict[int, float]) -> None:
    wishes = [Wish(key, *each) for key, each in enumerate(wanted)]
    watched = [wish.key for wish in wishes if wish.is_interactive and wish.decodes]
    found = allot(wishes, paced(points), PassRoom(60, 256, 64))
    if len(watched) <= 64:
        assert set(watched) <= set(found)


@given(wishes_strategy, st.sampled_from([{}, {1: 2e-3}, MEASURED]), st.integers(0, 80), st.data())
def test_what_must_be_in_one_pass_is_not_cut(
    wanted: list[tuple[bool, int, int]], points: dict[int, float], n_drafts: int, data: st.DataObject
) -> None:
    least = [data.draw(st.one_of(st.just(1), st.integers(1, min(n_missing, 256)))) for _, n_missing, _ in wanted]
    wishes = [Wish(key, *each, n_least=n) for key, (each, n) in enumerate(zip(wanted, least, strict=True))]
    found = allot(wishes, paced(points), PassRoom(60, 256 + 64, 64, n_drafts))
    assert found
    assert sum(found.values()) <= 256 + 64
    assert all(least[key] <= n <= wishes[key].n_missing for key, n in found.items())


@pytest.mark.parametrize("interactive", [True, False])
def test_an_image_is_read_beside_as_many_answers_as_there_can_be(*, interactive: bool) -> None:
    """In a pass of its size and a token for each of the others, at the latest when it was left out for long."""
    answers = [decoding(key, last=number) for key, number in zip(range(63), [0] * 63, strict=True)]
    image = Wish(99, interactive, 400, 0, n_least=256)
    for number in range(1, PATIENCE + 3):
        found = allot([*answers, image], REAL, PassRoom(number, 256 + 64, 64, n_drafts=80))
        assert found.keys() >= {each.key for each in answers}
        if 99 in found:
            assert found[99] == 256
            return
    raise AssertionError("the image was never read")


def test_one_answer_has_the_pass_alone() -> None:
    assert allot([Wish(7, False, 900, 0)], REAL, ROOM) == {7: 256}
    assert allot([decoding(7)], Pace(), ROOM) == {7: 1}


def test_all_who_decode_share_passes() -> None:
    assert allot([decoding(key) for key in range(8)], REAL, ROOM) == dict.fromkeys(range(8), 1)
    unwatched = [decoding(key, interactive=False) for key in range(8)]
    assert allot(unwatched, REAL, ROOM) == dict.fromkeys(range(8), 1)


def test_background_answers_take_turns_where_all_of_them_would_slow_the_one_that_is_watched() -> None:
    steep = paced({n: n * 1e-3 for n in (1, 2, 3, 4, 8)})  # every further token costs as much as the first
    last = dict.fromkeys(range(1, 5), 0)
    seen = dict.fromkeys(last, 0)
    for number in range(1, 60):
        wishes = [decoding(0), *(decoding(key, interactive=False, last=last[key]) for key in last)]
        found = allot(wishes, steep, PassRoom(number, 256, 64))
        assert 0 in found
        for key in found.keys() - {0}:
            last[key], seen[key] = number, seen[key] + 1
        assert all(number - each <= PATIENCE + 1 for each in last.values())
    assert max(seen.values()) - min(seen.values()) <= 1


def test_a_background_prompt_is_read_in_pieces_that_nobody_notices() -> None:
    found = allot([decoding(0), Wish(1, False, 5000, 0)], REAL, ROOM)
    assert found[0] == 1
    assert seconds_of(1 + found[1]) <= SLOWED * MEASURED[1] < seconds_of(2 + found[1])
    steep = paced({n: n * 1e-3 for n in (1, 2, 4, 8, 16)})
    wishes = [decoding(0, last=20), Wish(1, False, 5000, 20 - PATIENCE)]
    assert allot(wishes, steep, PassRoom(20, 256, 64)) == {0: 1}
    assert allot(wishes, steep, PassRoom(21, 256, 64)) == {0: 1, 1: LEAST_CHUNK}


def test_a_background_prompt_is_read_beside_prompts_that_never_end() -> None:
    steep = paced({n: n * 0.05 for n in (1, 2, 4, 8, 16)})
    for pace, beside in ((REAL, []), (REAL, [0, 1]), (steep, [0])):
        n_missing, last, other_last, number = 500, 0, 0, 0
        while n_missing:
            number += 1
            watched = [decoding(key, last=number - 1) for key in beside]
            wishes = [*watched, Wish(8, False, n_missing, last), Wish(9, True, 3000, other_last)]
            found = allot(wishes, pace, PassRoom(number, 256, 64))
            assert set(beside) <= set(found)
            n_missing, last = n_missing - found.get(8, 0), number if 8 in found else last
            other_last = number if 9 in found else other_last
            assert number - min(last, other_last) <= 2 * PATIENCE
        assert number <= -(-500 // LEAST_CHUNK) * (PATIENCE + 2)


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 3), st.sampled_from([1.0, 20.0]))
def test_background_work_slows_those_who_are_watched_by_no_more_than_that(
    n_watched: int, n_decoding: int, n_prompts: int, slower: float
) -> None:
    pace = paced({size: seconds * slower for size, seconds in MEASURED.items()})
    kinds = [(True, 1)] * n_watched + [(False, 1)] * n_decoding + [(False, 5000)] * n_prompts
    found = allot([Wish(key, *kind, 59) for key, kind in enumerate(kinds)], pace, PassRoom(60, 256, 64))
    assert set(range(n_watched)) <= set(found)
    alone_s, together_s = pace.seconds(n_watched), pace.seconds(sum(found.values()))
    assert alone_s is not None
    assert together_s is not None
    assert together_s <= SLOWED * alone_s * (1 + 1e-9)


@pytest.mark.parametrize("n_watched", [1, 4, 8, 12])
def test_a_prompt_that_somebody_waits_for_has_a_share_beside_any_number_that_is_watched(n_watched: int) -> None:
    pace = paced({1: 0.021, 8: 0.034, 16: 0.05, 32: 0.085, 64: 0.16, 256: 0.6})  # a model of a billion weights
    usual_s = pace.seconds(n_watched)
    assert usual_s is not None
    most = pace.most_tokens(max(STALL_S, SLOWED * usual_s), 256)
    n_missing, number, now_s = 2000, 0, 0.0
    while n_missing:
        number += 1
        wishes = [*(decoding(key, last=number - 1) for key in range(n_watched)), Wish(99, True, n_missing, number - 1)]
        found = allot(wishes, pace, PassRoom(number, 256, 64))
        assert found[99] == min(n_missing, most - n_watched)
        n_missing, now_s = n_missing - found[99], now_s + (pace.seconds(sum(found.values())) or 0.0)
    assert now_s <= 3 * 2000 / 256 * 0.6  # what it takes alone


def test_a_prompt_that_somebody_waits_for_has_all_of_the_pass_that_nobody_watches() -> None:
    wishes = [Wish(0, True, 200, 0), *(decoding(key, interactive=False) for key in range(1, 5))]
    assert allot(wishes, REAL, ROOM) == {0: 200, 1: 1, 2: 1, 3: 1, 4: 1}


def test_background_prompts_leave_room_for_somebody_to_come() -> None:
    slow = paced({1: 0.022, 64: 0.15, 256: 0.6})
    n_tokens = sum(allot([Wish(key, False, 5000, 0) for key in range(3)], slow, ROOM).values())
    assert slow.seconds(n_tokens) <= CHUNK_S < slow.seconds(n_tokens + 1)


@pytest.mark.parametrize(("first_s", "limit_s"), [(0.022, CALM_CHUNK_S), (0.3, CALM_SLOWED * 0.3)])
def test_background_prompts_are_read_in_larger_parts_while_nobody_comes(first_s: float, limit_s: float) -> None:
    slow, wishes = paced({1: first_s, 64: 0.35, 256: 1.4}), [Wish(key, False, 5000, 0) for key in range(3)]
    calm = replace(ROOM, is_calm=True)
    n_tokens = sum(allot(wishes, slow, calm).values())
    assert slow.seconds(n_tokens) <= limit_s < slow.seconds(n_tokens + 1)
    watched = [Wish(3, True, 1, 0), *wishes]
    assert allot(watched, slow, calm) == allot(watched, slow, ROOM)


@dataclass
class Job:
    """An answer on the virtual clock."""

    interactive: bool
    n_prompt: int
    n_answer: int
    at_s: float = 0.0
    n_done: int = 0
    last_pass: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def n_missing(self) -> int:
        return max(1, self.n_prompt - self.n_done)


def simulated(jobs: list[Job]) -> None:
    """Run all jobs on a clock that only passes move; passes take what was measured."""
    pace, now_s, number = paced(MEASURED), 0.0, 0
    while any(len(job.times) < job.n_answer for job in jobs):
        able = [job for job in jobs if job.at_s <= now_s and len(job.times) < job.n_answer]
        if not able:
            now_s = min(job.at_s for job in jobs if job.at_s > now_s)
            continue
        number += 1
        wishes = [Wish(key, job.interactive, job.n_missing, job.last_pass) for key, job in enumerate(able)]
        found = allot(wishes, pace, PassRoom(number, 256, 64))
        seconds = seconds_of(sum(found.values()))
        now_s += seconds
        pace.observe(sum(found.values()), seconds)
        for key, n in found.items():
            job, was_missing = able[key], able[key].n_missing
            job.last_pass, job.n_done = number, job.n_done + n
            if n == was_missing:
                job.times.append(now_s)


@pytest.mark.parametrize("n_background", [1, 4, 12])
@pytest.mark.parametrize("n_prompt", [16, 3000])
def test_the_one_that_is_watched_is_hardly_slowed(n_background: int, n_prompt: int) -> None:
    jobs = [Job(False, n_prompt, 150) for _ in range(n_background)]
    watched, alone = Job(True, 200, 200, at_s=0.05), Job(True, 200, 1)
    simulated([*jobs, watched])
    simulated([alone])
    between = sorted(after - before for before, after in zip(watched.times, watched.times[1:], strict=False))
    assert between[int(0.95 * len(between))] <= 2 * MEASURED[1]
    assert watched.times[0] - watched.at_s <= 3 * alone.times[0] + CHUNK_S
    assert all(len(job.times) == job.n_answer for job in jobs)


def test_eight_answers_are_as_fast_together_as_a_pass_of_eight() -> None:
    jobs = [Job(False, 1, 100) for _ in range(8)]
    simulated(jobs)
    assert jobs[0].times[-1] == pytest.approx(100 * MEASURED[8], rel=0.02)


def test_waiting_makes_background_answers_as_good_as_any() -> None:
    assert rank("interactive", 0.0) < rank("background", 0.0)
    assert rank("background", AGED_S) == rank("interactive", 0.0)


def test_nothing_is_known_at_first() -> None:
    assert Pace().seconds(3) is None
    assert Pace().most_tokens(1.0, 100) == 100


def test_times_between_what_was_seen_and_beyond() -> None:
    pace = Pace()
    pace.observe(1, 2.0)
    pace.observe(8, 5.5)
    assert [pace.seconds(n) for n in (1, 2, 8, 16)] == [2.0, 2.5, 5.5, 11.0]
    assert pace.most_tokens(2.5, 100) == 2
    assert pace.most_tokens(1.9, 100) == 0


def test_new_times_count_most_and_strange_ones_little() -> None:
    pace = Pace()
    pace.observe(1, 1.0)
    for _ in range(60):
        pace.observe(1, 2.0)
    assert pace.seconds(1) == pytest.approx(2.0, rel=0.01)
    pace.observe(1, 1000.0)
    assert pace.seconds(1) < 2.0 + 2.0 * MOST_STRANGE / 8


@given(st.lists(st.tuples(st.integers(1, 256), st.floats(1e-4, 1.0)), min_size=1), st.integers(1, 300))
def test_no_pass_takes_longer_than_a_larger_one(seen: list[tuple[int, float]], n_tokens: int) -> None:
    pace = Pace()
    for size, seconds in seen:
        pace.observe(size, seconds)
    assert pace.seconds(n_tokens) <= pace.seconds(n_tokens + 1) * (1 + 1e-9)
    limit = pace.seconds(n_tokens)
    assert pace.most_tokens(limit * (1 + 1e-9), 400) >= n_tokens


@pytest.mark.parametrize("is_interactive", [True, False])
def test_prompts_leave_room_to_drafts_but_interactive_ones_none_to_background_answers(is_interactive: bool) -> None:
    """Where passes of all sizes take the same time, as with weights from disk, a prompt would fill them."""
    pace, room = paced(dict.fromkeys((1, 64, 256), 1.0)), PassRoom(60, 256, 64, n_drafts=16)
    for prompt_is_interactive in (True, False):
        answers = [decoding(key, interactive=is_interactive, last=59) for key in range(2)]
        found = allot([*answers, Wish(9, prompt_is_interactive, 1000, 59)], pace, room)
        assert found[9] == 256 - 2 - (0 if prompt_is_interactive and not is_interactive else 16)
    assert allot([*answers, Wish(9, True, 40, 59)], pace, room)[9] == 40
    assert allot([Wish(9, True, 1000, 59), Wish(8, True, 1000, 59)], pace, PassRoom(60, 256, 64))[9] == 256


@given(wishes_strategy, st.lists(st.integers(0, 200), min_size=90, max_size=90), st.sampled_from([1e-4, 1e-3, 1e-1]))
def test_prompts_that_are_read_in_blocks_end_with_one_or_with_themselves(
    wanted: list[tuple[bool, int, int]], before: list[int], token_s: float
) -> None:
    """However slow passes are; and somebody always goes on."""
    room, pace = PassRoom(60, 256, 64, 30, block=64), paced({1: token_s, 64: 64 * token_s})
    wishes = [Wish(key, *each, n_before=before[key]) for key, each in enumerate(wanted)]
    found = allot(wishes, pace, room)
    assert found
    assert sum(found.values()) <= room.max_tokens
    if len(wishes) == 1:
        return  # it has all of the pass, and takes whole blocks of it
    for wish in wishes:
        n_tokens = found.get(wish.key, 0)
        if n_tokens and not wish.decodes:
            n_all = wish.n_before + wish.n_missing
            n_read = wish.n_before + n_tokens
            assert n_read % 64 == 0 or n_read // 64 == n_all // 64


def test_prompts_wait_for_no_answers_of_their_own_group() -> None:
    decoding_, prompts = [Wish(0, True, 1, 0, group=5)], [Wish(key, True, 90, 0, group=5) for key in (1, 2, 3)]
    assert allot([*decoding_, *prompts], REAL, ROOM) == {0: 1, 1: 90, 2: 90, 3: 75}
    alone = [replace(wish, group=0) for wish in (*decoding_, *prompts)]
    assert sum(allot(alone, REAL, ROOM).values()) < 120  # the answer is not to stall
    stranger = Wish(9, True, 1, 0)
    assert sum(allot([*decoding_, *prompts, stranger], REAL, ROOM).values()) < 120
    foreign = Wish(9, True, 500, 0)
    found = allot([*decoding_, foreign], REAL, ROOM)
    assert 1 <= found[9] < 120  # another reader's prompt does not slow the group
    assert allot([*decoding_, *prompts, foreign], REAL, ROOM) == {0: 1, 1: 90, 2: 90, 3: 75}
