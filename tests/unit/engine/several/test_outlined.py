"""Answers by their outlines: parts are what their prompts give alone, read in order; else one ordinary answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.several import parts_asking
from edgeinfer.engine.several.outlined import Outlined
from edgeinfer.engine.several.outlines import Outline, outline_turns, point_stops, point_turns
from edgeinfer.errors import BadSetting, EngineClosed
from tests.conftest import write_tiny_llama

QUESTION = "What are the main reasons for rain?"
OUTLINE = Outline(("Heat", "The sea", "Tin and then inn"))
GREEDY = {"temperature": 0, "max_tokens": 14}
HOT = {"temperature": 1.2, "max_tokens": 14, "seed": 11}
HEADS = ["1. Heat:", "2. The sea:", "3. Tin and then inn:"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny_llama(tmp_path_factory.mktemp("outlined") / "tiny.gguf", context=2048)
    with load(path, device="cpu", n_sessions=4) as loaded:
        yield loaded


@pytest.fixture
def outlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model writes the one outline that a regular expression allows."""
    monkeypatch.setattr(parts_asking, "outline_regex", lambda: r" Heat\n2\. The sea\n3\. Tin and then inn")


def by_outline(llm: LLM, prompt: object = QUESTION, **options: object) -> Outlined:
    return llm.by_outline(prompt, constrained=True, **options)  # type: ignore[arg-type]


def parts_alone(llm: LLM, before: tuple[dict[str, str], ...] = (), **options: object) -> list[str]:
    found = []
    for number in (1, 2, 3):
        asked = [*before, *point_turns(QUESTION, OUTLINE, number)]
        found.append(llm.chat(asked, stop=point_stops(OUTLINE), **options).read())  # type: ignore[arg-type]
    return found


def joined(parts: list[str]) -> str:
    return "\n".join(head + part.rstrip() for head, part in zip(HEADS, parts, strict=True))


@pytest.mark.usefixtures("outlines")
@pytest.mark.parametrize("options", [GREEDY, HOT, {**HOT, "logit_bias": {2: 8.5}}])
def test_every_part_is_what_its_prompt_gives_alone(llm: LLM, options: dict[str, object]) -> None:
    expected = parts_alone(llm, **options)
    outlined = by_outline(llm, **options)
    pieces = list(outlined)
    assert outlined.outline == OUTLINE
    assert [part.text for part in outlined.parts] == expected
    assert "".join(pieces) == outlined.text == joined(expected)
    assert (outlined.fallback, outlined.ordinary) == ("", None)
    assert outlined.suiting.reason == "it asks for a list"
    assert len(outlined.streams) == 4
    assert outlined.n_generated == sum(each.stats.n_generated for each in outlined.streams if each.stats)
    assert outlined.first_s is not None
    assert 0 < outlined.first_s <= outlined.seconds


@pytest.mark.usefixtures("outlines")
def test_parts_share_their_prompt_and_their_passes(llm: LLM) -> None:
    outlined = by_outline(llm, temperature=0, max_tokens=40, ignore_eos=True)
    counts = llm._driver.scheduler.counts
    next(outlined)
    before = counts.passes
    outlined.read()
    assert counts.passes - before < 60  # for 120 tokens
    parts = [part.stats for part in outlined.parts]
    assert all(stats is not None and stats.n_cached > stats.n_prompt - 70 for stats in parts[1:])


@pytest.mark.usefixtures("outlines")
def test_text_is_read_in_order(llm: LLM) -> None:
    outlined, before = by_outline(llm, **HOT), ""
    for piece in outlined:
        before += piece
        assert before == outlined.text
        n_begun = sum(head in before for head in HEADS)
        assert all(part.stats is not None for part in outlined.parts[: n_begun - 1])
    assert before.startswith(HEADS[0])


@pytest.mark.usefixtures("outlines")
def test_a_conversation_stays_before_it(llm: LLM) -> None:
    before = (
        {"role": "system", "content": "the tin"},
        {"role": "user", "content": "in"},
        {"role": "assistant", "content": "the inn"},
    )
    expected = parts_alone(llm, before, **GREEDY)
    outlined = by_outline(llm, [*before, {"role": "user", "content": QUESTION}], **GREEDY)
    assert outlined.read() == joined(expected)
    asked = llm.prompts.chat([*before, *outline_turns(QUESTION)], {})
    assert outlined.outline_stream is not None
    assert outlined.outline_stream.prompt == asked.prompt


@pytest.mark.usefixtures("outlines")
def test_stops_of_the_user_end_parts(llm: LLM) -> None:
    whole = parts_alone(llm, **GREEDY)
    stop = whole[1][3:5]
    found = by_outline(llm, **GREEDY, stop=stop)
    found.read()
    assert [part.text for part in found.parts] == [text.partition(stop)[0] for text in whole]


@pytest.mark.usefixtures("outlines")
def test_stops_of_the_model_end_parts_too(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parts_alone(llm, **GREEDY)
    stop = whole[2][3:5]
    monkeypatch.setattr(llm, "prompts", replace(llm.prompts, stops=(stop,)))
    found = by_outline(llm, **GREEDY)
    found.read()
    assert [part.text for part in found.parts] == [text.partition(stop)[0] for text in whole]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (" Heat", "only one point"),
        (r" Heat\n2\. heat\n3\. Sea", "repeats another one"),
        (r" Heat\n3\. Sea", "comes where 2 should"),
        (r" Heat\n2\. \n3\. Sea", "is empty"),
        (" (hen ){20}hen", "did not come to an end|too long"),
    ],
)
def test_a_malformed_outline_gives_one_ordinary_answer(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, written: str, reason: str
) -> None:
    monkeypatch.setattr(parts_asking, "outline_regex", lambda: written)
    expected = llm.chat([{"role": "user", "content": QUESTION}], **GREEDY).read()
    outlined = by_outline(llm, **GREEDY)
    assert "".join(outlined) == outlined.text == expected
    assert any(each in outlined.fallback for each in reason.split("|")), outlined.fallback
    assert (outlined.outline, outlined.parts) == (None, ())
    assert outlined.ordinary is not None
    assert outlined.outline_stream is not None


def test_what_the_random_model_writes_is_no_outline(llm: LLM) -> None:
    outlined = llm.by_outline(QUESTION, **GREEDY)
    assert outlined.read() == llm.chat([{"role": "user", "content": QUESTION}], **GREEDY).read()
    assert "outline" in outlined.fallback


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        ("What is 2+2?", {}, "it has numbers to reckon with"),
        (QUESTION, {"regex": "(yes|no)"}, "follow a form (regex)"),
        ([{"role": "user", "content": [{"type": "text", "text": QUESTION}]}], {}, "no question in plain text"),
        ([{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "the"}], {}, "no question in plain"),
    ],
)
def test_what_does_not_suit_is_answered_as_always(
    llm: LLM, prompt: str | list[dict[str, object]], options: dict[str, object], reason: str
) -> None:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    outlined = llm.by_outline(prompt, **GREEDY, **options)  # type: ignore[arg-type]
    assert reason in outlined.fallback
    assert outlined.read() == llm.chat(messages, **GREEDY, **options).read()  # type: ignore[arg-type]
    assert outlined.outline_stream is None


@pytest.mark.usefixtures("outlines")
def test_an_outline_may_be_asked_for_whatever_the_question(llm: LLM) -> None:
    outlined = by_outline(llm, "What is 2+2?", always=True, **GREEDY)
    assert outlined.read().startswith(HEADS[0])
    assert outlined.suiting.reason == "an outline is asked for"


def test_what_does_not_fit_is_answered_as_always(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu", n_sessions=2) as small:
        outlined = small.by_outline(QUESTION, keeps_all=True, **GREEDY)
        assert outlined.read() == small.chat([{"role": "user", "content": QUESTION}], **GREEDY).read()
        assert "its outline cannot be asked for: the conversation has" in outlined.fallback


@pytest.mark.usefixtures("outlines")
def test_parts_that_do_not_fit_are_answered_as_always(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_asking, "point_turns", lambda *_: [{"role": "user", "content": "hen " * 600}])
    with load(tiny_model, device="cpu", n_sessions=2) as small:
        outlined = by_outline(small, **GREEDY)
        assert outlined.read() == small.chat([{"role": "user", "content": QUESTION}], **GREEDY).read()
        assert "its parts cannot be asked for" in outlined.fallback


@pytest.mark.usefixtures("outlines")
@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_it_may_be_stopped_at_any_point(llm: LLM, after: int) -> None:
    long = {"temperature": 1.2, "max_tokens": 120, "seed": 40 + after}
    outlined = by_outline(llm, **long)
    if after == 0:
        outlined.stop()
    for number, _ in enumerate(outlined, 1):
        if number == after:
            outlined.stop()
    assert (llm.telemetry.queue.n_active, llm.telemetry.queue.n_waiting) == (0, 0)
    parts, whole = [part.text for part in outlined.parts], parts_alone(llm, **long)
    assert joined([*parts, "", "", ""][:3]).startswith(outlined.text)
    if after < 2:
        assert outlined.text == HEADS[0][: after * 99]
    assert all(each.startswith(part) for part, each in zip(parts, whole, strict=False))
    assert outlined.text != joined(whole)


@pytest.mark.usefixtures("outlines")
def test_a_part_may_be_stopped_alone(llm: LLM) -> None:
    long = {"temperature": 1.2, "max_tokens": 60, "seed": 4}
    outlined = by_outline(llm, **long)
    for _ in outlined:
        if outlined.parts:
            outlined.parts[1].stop()
    parts, whole = [part.text for part in outlined.parts], parts_alone(llm, **long)
    assert (parts[0], parts[2]) == (whole[0], whole[2])
    assert whole[1].startswith(parts[1])
    assert parts[1] != whole[1]
    assert outlined.text == joined(parts)


@pytest.mark.parametrize("n_pieces", [0, 1])
def test_closing_early_leaves_nothing_running(llm: LLM, n_pieces: int) -> None:
    outlined = llm.by_outline(QUESTION, temperature=1.0, max_tokens=200)
    for _ in range(n_pieces):
        next(outlined)
    outlined.close()
    assert (llm.telemetry.queue.n_active, llm.telemetry.queue.n_waiting) == (0, 0)
    assert outlined.ordinary is None or outlined.ordinary.live.n_generated < 200


@pytest.mark.usefixtures("outlines")
def test_in_an_event_loop_the_answer_is_the_same(llm: LLM) -> None:
    async def gathered(constrained: bool) -> tuple[str, Outlined]:
        outlined = llm.by_outline(QUESTION, constrained=constrained, **HOT)
        return "".join([piece async for piece in outlined]), outlined

    text, outlined = asyncio.run(gathered(True))
    assert text == joined(parts_alone(llm, **HOT)) == outlined.text
    text, outlined = asyncio.run(gathered(False))
    assert text == llm.chat([{"role": "user", "content": QUESTION}], **HOT).read()
    assert outlined.fallback


def test_what_cannot_be_is_refused_at_once(llm: LLM) -> None:
    with pytest.raises(BadSetting, match="heat"):
        llm.by_outline(QUESTION, heat=1)  # type: ignore[call-arg]
    with pytest.raises(BadSetting, match="role"):
        llm.by_outline([{"content": "x"}])
    with pytest.raises(BadSetting):
        llm.by_outline([])


def test_a_closed_model_answers_nothing(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu") as loaded:
        outlined = loaded.by_outline(QUESTION, **GREEDY)
    with pytest.raises(EngineClosed):
        outlined.read()


@pytest.mark.model
def test_a_real_model_writes_by_its_outline(starter_model: Path) -> None:
    question = "Give five tips for learning to play the guitar."
    with load(starter_model, device="cpu", n_sessions=2) as starter:
        outlined = starter.by_outline(question, temperature=0, max_tokens=40)
        text = outlined.read()
        assert outlined.fallback == ""
        assert outlined.outline is not None
        alone = [
            starter.chat(
                point_turns(question, outlined.outline, number),
                stop=point_stops(outlined.outline),
                temperature=0,
                max_tokens=40,
            ).read()
            for number in range(1, len(outlined.outline.points) + 1)
        ]
    assert [part.text for part in outlined.parts] == alone
    assert text.startswith(f"1. {outlined.outline.points[0]}:")
    assert all(len(part) > 10 for part in alone)
