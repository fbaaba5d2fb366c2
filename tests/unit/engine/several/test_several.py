"""Several answers at once: each is the answer that its request has alone; losers leave at once; any answer may end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.several.several import Several
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.scheduling.several.picks import PICKS

PROMPT = "the rain in the tin, the hen in the inn, and a moth in the broth; " * 2
HOT = {"temperature": 1.2, "max_tokens": 24}
ENDS = {2: 8.5}
"""A bias that lets answers of the tiny model come to an end, at different lengths."""


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="cpu", n_sessions=4) as loaded:
        yield loaded


def n_used_pages(llm: LLM) -> int:
    return llm.telemetry.limits.n_pages - llm.telemetry.n_free_pages


def texts(several: Several) -> list[str]:
    """What each answer gave as pieces."""
    found = [""] * len(several.answers)
    for piece in several:
        found[piece.number] += piece.text
    return found


def test_each_answer_is_what_its_request_gives_alone(llm: LLM) -> None:
    alone = [llm.complete(PROMPT, seed=seed, **HOT) for seed in range(7, 13)]
    expected = [stream.read() for stream in alone]
    several = llm.several(PROMPT, 6, seed=7, **HOT)
    assert texts(several) == expected == [answer.text for answer in several.answers]
    assert [answer.tokens for answer in several.answers] == [stream.tokens for stream in alone]
    assert several.chosen is not None
    assert [answer.stats.seed for answer in several.answers if answer.stats is not None] == list(range(7, 13))


def test_answers_of_a_conversation_share_their_prompt(llm: LLM) -> None:
    with llm.several([{"role": "user", "content": PROMPT}], 5, pick="first", seed=1, **HOT) as several:
        several.read()
    answers = [answer.stats for answer in several.answers]
    assert all(stats is not None and stats.n_cached > stats.n_prompt - 4 for stats in answers[1:])


@pytest.mark.parametrize("name", [name for name in PICKS.keys() if name != "medoid"])  # noqa: SIM118
def test_every_pick_keeps_one(llm: LLM, name: str) -> None:
    check = (lambda text: "e" in text) if name == "check" else None
    several = llm.several(PROMPT, 4, pick=name, check=check, seed=3, **HOT)
    kept = several.read()
    assert several.choice is not None
    assert kept == several.answers[several.choice.number].text
    assert several.choice.reason


def test_the_medoid_is_found_by_embeddings(llm: LLM) -> None:
    several = llm.several(PROMPT, 4, pick="medoid", seed=3, logit_bias=ENDS, **{**HOT, "max_tokens": 60})
    several.read()
    assert several.choice is not None
    whole = [
        n
        for n, answer in enumerate(several.answers)
        if answer.stats is not None and answer.stats.finish_reason == "stop"
    ]
    if len(whole) > 1:
        rows = llm.embed([several.answers[n].content[:2048] or " " for n in whole])
        likeness = [round(sum(float(a @ b) for b in rows), 5) for a in rows]
        assert several.choice.number == whole[likeness.index(max(likeness))]


def test_losers_leave_within_a_pass_and_free_their_pages(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    several = llm.several(PROMPT, 6, pick="first", seed=5, temperature=1.2, logit_bias=ENDS)
    counts, at_once, decided = llm._driver.scheduler.counts, several._judge.look, list[int]()

    def look(seconds: float, ended: set[int]) -> None:
        at_once(seconds, ended)
        if several.choice is not None:
            decided.append(counts.passes)

    monkeypatch.setattr(several._judge, "look", look)
    several.read()
    assert several.choice is not None
    assert several.choice.left
    assert counts.passes <= decided[0] + 1
    n_pages = pages_for(
        max(answer.stats.n_prompt + answer.stats.n_generated for answer in several.answers if answer.stats)
    )
    while llm._driver.scheduler.admission.give_up():  # what finished answers have left for others
        pass
    assert n_used_pages(llm) < n_pages * 2


def test_a_budget_of_tokens_ends_all_answers(llm: LLM) -> None:
    several = llm.several(PROMPT, 4, most_tokens=20, seed=2, temperature=1.0, ignore_eos=True)
    several.read()
    assert 20 <= several.n_generated < 80
    assert several.choice is not None
    assert several.choice.left == (0, 1, 2, 3)
    assert "the budget ended the others" in several.choice.reason


def test_a_budget_of_seconds_ends_all_answers(llm: LLM) -> None:
    several = llm.several(PROMPT, 3, most_s=1e-6, seed=2, temperature=1.0, max_tokens=200, ignore_eos=True)
    several.read()
    assert several.n_generated < 60


@pytest.mark.parametrize("answer", range(4))
@pytest.mark.parametrize("after", [0, 1, 5])
def test_any_answer_may_be_stopped_at_any_point(llm: LLM, answer: int, after: int) -> None:
    expected = [llm.complete(PROMPT, seed=20 + n, **HOT).read() for n in range(4)]
    several = llm.several(PROMPT, 4, seed=20, **HOT)
    found = [""] * 4
    if after == 0:
        several.answers[answer].stop()
    for n_seen, piece in enumerate(several, 1):
        found[piece.number] += piece.text
        if n_seen == after:
            several.answers[answer].stop()
    assert [text for n, text in enumerate(found) if n != answer] == [
        text for n, text in enumerate(expected) if n != answer
    ]
    assert expected[answer].startswith(found[answer])
    assert several.choice is not None


def test_closing_early_leaves_nothing_running(llm: LLM) -> None:
    before = llm.telemetry.queue.n_active
    several = llm.several(PROMPT, 4, seed=1, temperature=1.0, max_tokens=300, ignore_eos=True)
    next(several)
    several.close()
    assert (llm.telemetry.queue.n_active, llm.telemetry.queue.n_waiting) == (before, 0)
    with pytest.raises(EdgeInferError, match="nothing was chosen"):
        several.read()


def test_in_an_event_loop_the_answers_are_the_same(llm: LLM) -> None:
    expected = [llm.complete(PROMPT, seed=seed, **HOT).read() for seed in range(30, 34)]

    async def gathered() -> tuple[list[str], Several]:
        several = llm.several(PROMPT, 4, seed=30, **HOT)
        found = [""] * 4
        async for piece in several:
            found[piece.number] += piece.text
        return found, several

    found, several = asyncio.run(gathered())
    assert found == expected
    assert several.chosen is not None


def test_checks_run_beside_the_answers_and_their_errors_arrive(llm: LLM) -> None:
    threads = set[str]()

    def check(text: str) -> bool:
        threads.add(threading.current_thread().name)
        time.sleep(0.01)
        raise ValueError(f"cannot check {len(text)}")

    several = llm.several(PROMPT, 3, pick="check", check=check, seed=9, logit_bias=ENDS, temperature=1.0)
    with pytest.raises(ValueError, match="cannot check"):
        several.read()
    assert all(name.startswith("edgeinfer check") for name in threads)


def test_several_schemas_are_followed_side_by_side(llm: LLM) -> None:
    several = llm.several(PROMPT, 3, regex="(yes|no|maybe)", answer="text", seed=4, temperature=1.5)
    kept = several.read()
    assert kept in ("yes", "no", "maybe")
    assert several.choice is not None
    votes = several.choice.votes
    assert votes.count(kept) == max(map(votes.count, votes))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "1 to 64"),
        ({"n": 2, "pick": "best"}, "vote"),
        ({"n": 2, "temperature": 0}, "temperature 0"),
        ({"n": 2, "pick": "check"}, "needs a check"),
        ({"n": 2, "check": len}, "no other pick"),
        ({"n": 2, "enough": -1}, "enough"),
        ({"n": 2, "confidence": 0}, "confidence"),
        ({"n": 2, "most_tokens": -1}, "negative"),
        ({"n": 2, "answer": "nothing"}, "there are: auto"),
    ],
)
def test_what_cannot_be_is_refused(llm: LLM, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        llm.several(PROMPT, **arguments)  # type: ignore[arg-type]
