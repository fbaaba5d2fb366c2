"""Answers that are led: each fork is what its request gives alone; which forks there are depends on no speed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.several.several import Several
from edgeinfer.errors import BadSetting, EdgeInferError, UnknownKey
from edgeinfer.scheduling.several.forking import next_uncertain, other_tokens
from edgeinfer.scheduling.several.picks import PICKS
from tests.golden.goldens import DATA
from tests.unit.engine.several.led import alone, assert_each_is_itself, gathered

PROMPT = "the rain in the tin, the hen in the inn, and a moth in the broth; " * 2
HOT: dict[str, Any] = {"temperature": 1.2, "max_tokens": 40}
ENDS = {2: 7.5}
"""A bias that lets answers of the tiny model come to an end, at different lengths."""
QUESTION = [{"role": "user", "content": "the rain in the tin"}]
LEADS = ("uncertain:entropy=2,apart=4", "particles:every=8,power=1.3")


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="cpu", n_sessions=8) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> Iterator[LLM]:
    """The same model without drafts, in which nothing is shared with the answers."""
    with load(tiny_model, device="cpu", n_sessions=1, spec="off") as loaded:
        yield loaded


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("seed", [1, 2, None])
def test_each_answer_is_what_its_request_gives_alone(llm: LLM, plain: LLM, lead: str, seed: int | None) -> None:
    several = llm.several(PROMPT, 5, lead=lead, pick="likely", seed=seed, logit_bias=ENDS, **HOT)
    found = gathered(several)
    assert_each_is_itself(several, found, plain)
    assert several.forks == (several.choice.forks if several.choice is not None else None)
    assert any(several.forks) or seed is None


def test_forks_are_where_the_rule_says(llm: LLM, plain: LLM) -> None:
    options = {"seed": 4, "ignore_eos": True, **HOT}
    several = llm.several(PROMPT, 6, lead="uncertain:entropy=1.5,others=2,least=0,apart=3", **options)
    several.read()
    trunk = plain.complete(PROMPT, logprobs=4, **options)
    trunk.read()
    own = alone(plain, several.answers[0])
    assert own.tokens == trunk.tokens
    expected, start = list[tuple[int, int]](), 0
    while (place := next_uncertain(own.entropies, 1.5, start)) is not None:
        told = trunk.logprobs[place]
        expected += [(place, token) for token, _ in other_tokens(told.top, told.token, 2, 0.0, {2})]
        start = place + 3
    forks = [(fork.n_tokens, several.answers[n].tokens[fork.n_tokens]) for n, fork in enumerate(several.forks) if fork]
    assert forks == expected[:5]
    assert len(forks) == 5


def test_entropies_are_those_of_the_models_distribution(plain: LLM) -> None:
    several = plain.several(PROMPT, 2, lead="uncertain:entropy=99", seed=1, pick="first", **HOT)
    several.read()
    trunk = several.answers[0]
    assert len(several.answers) == 1  # nothing is that uncertain
    for place in (0, 3, 17):
        text = [*trunk.prompt, *trunk.tokens[:place]]
        logprobs = [each.logprob for each in (plain.logprobs([*text, token]).logprobs[-1] for token in range(265))]
        assert sum(map(math.exp, logprobs)) == pytest.approx(1, abs=1e-3)
        expected = -sum(math.exp(each) * each for each in logprobs)
        assert trunk.entropies[place] == pytest.approx(expected, abs=1e-3)


def test_greedy_answers_differ_by_their_forks(llm: LLM) -> None:
    options = {"temperature": 0, "max_tokens": 30}
    several = llm.several(PROMPT, 4, lead="uncertain:entropy=0.5,least=0", pick="likely", **options)
    several.read()
    assert len({answer.tokens for answer in several.answers}) == len(several.answers) > 1
    with pytest.raises(BadSetting, match="temperature 0"):
        llm.several(PROMPT, 4, lead="particles", temperature=0)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("pick", [name for name in PICKS.keys() if name not in ("medoid", "check")])  # noqa: SIM118
def test_every_pick_keeps_one_of_those_that_are_led(llm: LLM, lead: str, pick: str) -> None:
    several = llm.several(PROMPT, 4, lead=lead, pick=pick, seed=3, logit_bias=ENDS, **HOT)
    kept = several.read()
    assert several.choice is not None
    assert kept == several.answers[several.choice.number].text
    assert len(several.choice.votes) == len(several.choice.forks) == len(several.answers)
    assert several.choice.reason


def test_answers_that_come_later_are_checked(llm: LLM) -> None:
    several = llm.several(
        PROMPT, 4, lead=LEADS[0], pick="check", check=lambda text: "zzz" in text, seed=3, logit_bias=ENDS, **HOT
    )
    several.read()
    assert several.choice is not None
    assert "none of" in several.choice.reason or "no answer" in several.choice.reason
    assert all(answer.stats is not None for answer in several.answers)


@pytest.mark.parametrize("lead", LEADS)
def test_forks_share_pages_and_are_read_once(llm: LLM, lead: str) -> None:
    counts = llm._driver.scheduler.counts
    before = counts.n_evaluated - counts.n_drafted
    several = llm.several(PROMPT + lead, 4, lead=lead, pick="likely", seed=5, ignore_eos=True, **HOT)
    several.read()
    n_read = counts.n_evaluated - counts.n_drafted - before
    n_prompt = len(several.answers[0].prompt)
    n_forks = sum(fork is not None for fork in several.forks)
    assert n_forks
    # beside the prompt and each token written: of each answer the last one of what it shares, and a forced token
    assert n_read <= n_prompt + several.n_generated + 2 * len(several.answers)


@pytest.mark.parametrize("lead", LEADS)
def test_losers_leave_within_a_pass_and_free_their_pages(llm: LLM, lead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"seed": 5, "temperature": 1.2, "logit_bias": ENDS}
    several = llm.several(PROMPT, 5, lead=lead, pick="first", **options)
    counts, at_once, decided = llm._driver.scheduler.counts, several._judge.look, list[int]()

    def look(seconds: float, ended: set[int]) -> None:
        at_once(seconds, ended)
        if several.choice is not None:
            decided.append(counts.passes)

    monkeypatch.setattr(several._judge, "look", look)
    several.read()
    assert several.choice is not None
    assert counts.passes <= decided[0] + 1
    assert llm.telemetry.queue.n_active == 0
    while llm._driver.scheduler.admission.give_up():  # what finished answers have left for others
        pass
    longest = max(len(answer.prompt) + len(answer.tokens) for answer in several.answers)
    n_used = llm.telemetry.limits.n_pages - llm.telemetry.n_free_pages
    assert n_used < pages_for(longest) * 2


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("after", [0, 1, 9, 25, 60])
def test_any_answer_may_be_stopped_at_any_point(llm: LLM, plain: LLM, lead: str, after: int) -> None:
    several = llm.several(PROMPT, 4, lead=lead, seed=20 + after, ignore_eos=True, **HOT)
    found = list[str]()
    if after == 0:
        several.answers[0].stop()
    for n_seen, piece in enumerate(several, 1):
        found += [""] * (len(several.answers) - len(found))
        found[piece.number] += piece.text
        if n_seen == after:
            several.answers[-1].stop()
    found += [""] * (len(several.answers) - len(found))
    assert_each_is_itself(several, found, plain)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("after", [0, 1, 12, 40])
def test_closing_at_any_point_leaves_nothing_running(llm: LLM, lead: str, after: int) -> None:
    several = llm.several(PROMPT, 4, lead=lead, seed=1, temperature=1.2, max_tokens=200, ignore_eos=True)
    for _ in range(after):
        next(several)
    several.close()
    assert (llm.telemetry.queue.n_active, llm.telemetry.queue.n_waiting) == (0, 0)
    with pytest.raises(EdgeInferError, match="nothing was chosen"):
        several.read()


def test_stopping_all_begins_no_more(llm: LLM) -> None:
    several = llm.several(PROMPT, 8, lead="uncertain:entropy=0,apart=1,least=0", seed=1, ignore_eos=True, **HOT)
    for n_seen, _ in enumerate(several, 1):
        if n_seen == 3:
            several.stop()
            n_answers = len(several.answers)
    assert len(several.answers) == n_answers
    assert several.choice is not None


@pytest.mark.parametrize("lead", LEADS)
def test_in_an_event_loop_the_answers_are_the_same(llm: LLM, lead: str) -> None:
    def begun() -> Several:
        return llm.several(PROMPT, 4, lead=lead, pick="likely", seed=30, ignore_eos=True, **HOT)

    expected = begun()
    expected.read()

    async def written() -> Several:
        several = begun()
        async for _ in several:
            await asyncio.sleep(0.003)  # answers run ahead of whoever looks
        return several

    several = asyncio.run(written())
    for found, other in zip(several.answers, expected.answers, strict=True):
        n_both = min(len(found.tokens), len(other.tokens))  # what is dropped may have run ahead, even to its end
        assert found.tokens[:n_both] == other.tokens[:n_both]
    assert several.forks == expected.forks
    assert several.choice is not None
    assert expected.choice is not None
    assert several.choice.number == expected.choice.number
    assert several.chosen is not None
    assert expected.chosen is not None
    assert several.chosen.tokens == expected.chosen.tokens


@pytest.mark.parametrize("lead", LEADS)
def test_an_event_loop_may_leave_at_any_point(llm: LLM, lead: str) -> None:
    async def left(after: int) -> None:
        several = llm.several(PROMPT, 4, lead=lead, seed=1, temperature=1.2, max_tokens=200, ignore_eos=True)
        reached = asyncio.Event()

        async def write() -> None:
            n_seen = 0
            async for _ in several:
                n_seen += 1
                if n_seen >= after:
                    reached.set()

        task = asyncio.ensure_future(write())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for answer in several.answers:
            assert answer.is_stopped
        several.close()

    for after in (1, 15, 40):
        asyncio.run(left(after))
    assert (llm.telemetry.queue.n_active, llm.telemetry.queue.n_waiting) == (0, 0)


def test_stop_strings_and_budgets_count_what_was_inherited(llm: LLM, plain: LLM) -> None:
    options = {"seed": 8, "stop": ["a", "in"], **HOT}
    several = llm.several(PROMPT, 5, lead="uncertain:entropy=1,apart=2,least=0", pick="likely", **options)
    assert_each_is_itself(several, gathered(several), plain)
    spent = llm.several(PROMPT, 5, lead=LEADS[0], most_tokens=25, seed=2, temperature=1.2, ignore_eos=True)
    spent.read()
    assert 20 <= spent.n_generated < 60  # the tokens into which answers are forked count for the budget alone
    assert spent.choice is not None
    assert "budget" in spent.choice.reason


def test_forks_follow_what_answers_must_match(llm: LLM) -> None:
    pattern = "(the |a |in |hen |rain ){4,9}end"
    several = llm.several(PROMPT, 4, lead="uncertain:entropy=0,apart=2,least=0", regex=pattern, seed=2, **HOT)
    several.read()
    for answer in several.answers:
        assert answer.stats is not None
        if answer.stats.finish_reason == "stop":
            assert answer.text.endswith("end")
            assert set(answer.text.split()) <= {"the", "a", "in", "hen", "rain", "end"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lead": "cut"}, "thoughts"),
        ({"lead": "uncertain:entropy"}, "its options are: entropy, others, least, apart"),
        ({"lead": "uncertain:entropy=high"}, "a number"),
        ({"lead": "uncertain:others=1.5"}, "whole number"),
        ({"lead": "uncertain:others=0"}, "others"),
        ({"lead": "uncertain:least=2"}, "probability"),
        ({"lead": "independent:x=1"}, "has no options"),
        ({"lead": "particles:potential=1"}, "its options are: every, power, share"),
        ({"lead": "particles:every=0"}, "every"),
        ({"lead": "uncertain", "potential": len}, "takes no potential"),
    ],
)
def test_what_cannot_be_is_refused(llm: LLM, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        llm.several(PROMPT, 3, **arguments)


def test_an_unknown_strategy_is_refused_with_those_there_are(llm: LLM) -> None:
    with pytest.raises(UnknownKey, match="cut, independent, particles, uncertain"):
        llm.several(PROMPT, 3, lead="best")


@pytest.mark.parametrize("name", ["lfm2-q4_0", "qwen35-q4_0", "gemma3-q4_0"])
def test_states_and_windows_are_forked_exactly(name: str) -> None:
    file, prompt = DATA / f"{name}.gguf", "the rain in the inn and the hen in the tin, " * 6
    with load(file, device="cpu", n_sessions=5, n_context=512) as llm:
        several = llm.several(
            prompt, 4, lead="uncertain:entropy=1,apart=3,least=0", pick="likely", seed=3, ignore_eos=True, **HOT
        )
        found = gathered(several)
        with load(file, device="cpu", n_sessions=1, n_context=512, spec="off") as plain:
            assert_each_is_itself(several, found, plain)
    assert sum(fork is not None for fork in several.forks) == 3
