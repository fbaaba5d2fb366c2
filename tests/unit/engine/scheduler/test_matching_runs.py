"""Runs of tokens that a prompt shares with other texts, against a search that compares every place with every other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.requests.module_prompts import Module
from edgeinfer.engine.scheduler import matching_runs as matching
from edgeinfer.engine.scheduler.matching_runs import LEAST_RUN, MatchingRun, matching_runs

DRAW = np.random.default_rng(3)


def text(n: int, seed: int, n_vocab: int = 50_000) -> list[int]:
    return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()


BODY, OTHER = text(900, 1), text(500, 2)


def found(prompt: list[int], texts: list[list[int]], first: int = 0, stop: int | None = None) -> list[MatchingRun]:
    runs = matching_runs(prompt, first, len(prompt) if stop is None else stop, texts)
    position = first
    for run in runs:
        assert position <= run.start <= run.stop <= (len(prompt) if stop is None else stop)
        assert run.n_tokens >= LEAST_RUN
        assert prompt[run.start : run.stop] == texts[run.text][run.source : run.source + run.n_tokens]
        position = run.stop
    return runs


def test_what_follows_a_changed_line_is_one_run() -> None:
    old, new = text(20, 5), text(33, 6)
    assert found([*new, *BODY, 7], [[*old, *BODY, 8]]) == [MatchingRun(33, 933, 0, 20)]
    assert found([*new, *BODY], [[*old, *BODY]], first=40, stop=900) == [MatchingRun(40, 900, 0, 27)]


def test_names_of_rows_and_modules_are_no_obstacle() -> None:
    """They are negative numbers of many digits, which no word holds."""
    names = Module("manual", tuple(range(200))).names
    prompt = [*BODY[:300], 5, *names]
    assert found(prompt, [[7, *names, *BODY]]) == [MatchingRun(0, 300, 0, 201), MatchingRun(301, 501, 0, 1)]
    assert found(BODY, [[*names, 3], [4, *names, *BODY]]) == [MatchingRun(0, 900, 1, 201)]


def test_several_holes_and_several_texts() -> None:
    prompt = [*BODY[:300], 1, 2, 3, *BODY[310:600], *OTHER[100:300], 4, *BODY[700:]]
    assert found(prompt, [OTHER, BODY]) == [
        MatchingRun(0, 300, 1, 0),
        MatchingRun(303, 593, 1, 310),
        MatchingRun(593, 793, 0, 100),
        MatchingRun(794, 994, 1, 700),
    ]


def test_short_runs_are_left() -> None:
    for n_tokens in (1, LEAST_RUN - 1, LEAST_RUN, LEAST_RUN + 1):
        for offset in range(0, 130, 13):
            part = BODY[offset : offset + n_tokens]
            assert len(found([*text(40, 9), *part, *text(40, 10)], [BODY])) == (n_tokens >= LEAST_RUN)
    assert found(BODY, []) == []
    assert found(BODY, [[], [1, 2]]) == []
    assert found([], [BODY]) == []


def test_the_longest_run_and_of_equal_ones_the_last_text_are_taken() -> None:
    assert found(BODY, [BODY[:400], BODY[:700], BODY[:600]]) == [MatchingRun(0, 700, 1, 0)]
    assert found(BODY[:500], [BODY, BODY]) == [MatchingRun(0, 500, 1, 0)]


def test_texts_that_repeat_themselves_take_no_long_search() -> None:
    assert found([5] * 3000, [[5] * 4000])[0].n_tokens >= LEAST_RUN
    assert found([5, 6] * 1500, [[5] * 4000, [6] * 500]) == []


@given(st.data())
def test_no_long_run_is_missed(data: st.DataObject) -> None:
    """Every run of twice the least length, from whatever place, is found at least in part."""
    source = data.draw(st.integers(0, 600))
    n_tokens = data.draw(st.integers(2 * LEAST_RUN, 300))
    before, after = (text(data.draw(st.integers(0, 90)), seed) for seed in (20, 21))
    runs = found([*before, *BODY[source : source + n_tokens], *after], [OTHER, BODY])
    assert runs == [MatchingRun(len(before), len(before) + len(BODY[source : source + n_tokens]), 1, source)]


def test_rows_have_names_below_zero_and_match_like_tokens() -> None:
    rows = [-int(each) - 1 for each in DRAW.integers(0, 1 << 60, 300)]
    assert found([1, *rows], [[2, 3, *rows]]) == [MatchingRun(1, 301, 0, 2)]


def test_texts_made_to_match_everywhere_a_little_are_compared_no_longer_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each window of one text stands at many places of the other, and none of these is the beginning of a run."""
    n_compared, compare = 0, matching.n_common

    def counted(one: list[int], other: list[int]) -> int:
        nonlocal n_compared
        n_compared += len(one) + len(other)
        return compare(one, other)

    monkeypatch.setattr(matching, "n_common", counted)
    strange = iter(range(100, 10**9))
    donor = [token for _ in range(100) for token in ([1] * 64 + [next(strange) for _ in range(64)])]
    prompt = [token for _ in range(100) for token in ([1] * 100 + [next(strange)])]
    assert found(prompt, [donor]) == []
    assert n_compared < 1500 * len(prompt)
