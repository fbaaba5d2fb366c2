"""Answers that wait for a budget: those that begin come to their end, and early ends make room for others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.several import side_by_side
from edgeinfer.engine.several.asking import SeveralAsker
from edgeinfer.engine.several.several import Several

PROMPT = "the rain in the tin, the hen in the inn, and a moth in the broth; "
OPTIONS = {"temperature": 1.2, "max_tokens": 24, "seed": 7}
ENDS = {2: 8.5}
"""A bias that lets answers of the tiny model come to an end, at different lengths."""


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="cpu", n_sessions=4) as loaded:
        yield loaded


class Clock:
    """Every token takes a hundred seconds, so a pass takes as many hundreds as it has answers."""

    several: Several | None = None

    def monotonic(self) -> float:
        return 0.0 if self.several is None else 100.0 * self.several.n_generated


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of answers, and what is known of the cost of their passes."""
    found = Clock()
    monkeypatch.setattr(side_by_side, "time", found)
    monkeypatch.setattr(SeveralAsker, "_together_s", property(lambda _: lambda n_answers, n_cached: 100.0 * n_answers))
    return found


def test_as_many_begin_as_a_budget_of_tokens_allows(llm: LLM) -> None:
    several = llm.several(PROMPT, 8, pick="shortest", most_tokens=80, ignore_eos=True, **OPTIONS)
    several.read()
    assert [answer.stats.n_generated for answer in several.answers if answer.stats is not None] == [24] * 3
    assert several.choice is not None
    assert several.choice.left == ()
    assert several.choice.reason.endswith("; the budget was too small for 5 more")
    alone = [llm.complete(PROMPT, **{**OPTIONS, "seed": seed}, ignore_eos=True) for seed in (7, 8, 9)]
    assert [answer.text for answer in several.answers] == [stream.read() for stream in alone]


def test_answers_that_end_early_make_room_for_others(llm: LLM) -> None:
    options = {**OPTIONS, "logit_bias": ENDS}
    lengths = []
    for seed in range(7, 17):
        stream = llm.complete(PROMPT, **{**options, "seed": seed})
        stream.read()
        assert stream.stats is not None
        lengths.append(stream.stats.n_generated)
    assert min(lengths) < 12 < max(lengths)
    several = llm.several(PROMPT, 10, pick="vote", answer="text", most_tokens=80, **options)
    several.read()
    found = [answer.stats for answer in several.answers]
    assert all(stats is not None and stats.finish_reason in ("stop", "length") for stats in found)
    assert len(found) > 3  # than there would be with answers of the full length
    assert [stats.n_generated for stats in found if stats is not None] == lengths[: len(found)]
    assert sum(lengths[: len(found)]) <= 80


def test_a_budget_of_seconds_lets_one_read_the_prompt_first(llm: LLM, clock: Clock) -> None:
    with llm.several(PROMPT, 8, pick="shortest", most_s=24 * 100 * 3.0, ignore_eos=True, **OPTIONS) as several:
        clock.several = several
        assert len(several.answers) == 1
        several.read()
    assert len(several.answers) == 3
    assert several.n_generated == 72


def test_one_begins_in_any_case(llm: LLM, clock: Clock) -> None:
    clock.several = several = llm.several(PROMPT, 4, pick="shortest", most_s=150.0, ignore_eos=True, **OPTIONS)
    assert several.read()
    assert len(several.answers) == 1
    several = llm.several(PROMPT, 4, pick="shortest", most_tokens=10, ignore_eos=True, **OPTIONS)
    several.read()
    assert 10 <= several.n_generated < 24  # the budget ends it
    assert several.choice is not None
    assert "the budget ended the others" in several.choice.reason


def test_without_a_limit_of_each_none_waits(llm: LLM) -> None:
    options = {key: value for key, value in OPTIONS.items() if key != "max_tokens"}
    several = llm.several(PROMPT, 4, pick="shortest", most_tokens=40, ignore_eos=True, **options)
    assert len(several.answers) == 4
    several.read()
    assert several.n_generated < 40 + 4 * 8  # the pass that spends it may have drafts


def test_stopping_while_answers_wait(llm: LLM, clock: Clock) -> None:
    with llm.several(PROMPT, 8, pick="shortest", most_s=24 * 100 * 3.0, ignore_eos=True, **OPTIONS) as several:
        clock.several = several
        next(several)
        several.stop()
        for _ in several:
            pass
    assert several.n_generated < 24
    assert several.choice is not None
    assert len(several.answers) <= 3


def test_answers_begin_later_in_an_event_loop_too(llm: LLM, clock: Clock) -> None:
    async def run() -> tuple[int, int]:
        several = llm.several(PROMPT, 8, pick="shortest", most_s=24 * 100 * 2.0, ignore_eos=True, **OPTIONS)
        clock.several = several
        numbers = [piece.number async for piece in several]
        return several.n_generated, max(numbers)

    assert asyncio.run(run()) == (48, 1)
