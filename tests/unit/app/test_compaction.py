"""Compaction: what is summarised, in which parts, and what running it gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.app.chat import context as module
from edgeinfer.app.chat.context import (
    Compaction,
    CompactionPlan,
    Turn,
    parts_of,
    plan_compaction,
    request_for,
    system_with_summary,
)
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load

GREEDY = {"temperature": 0.0}
ENDLESS = {"temperature": 0.0, "logit_bias": dict.fromkeys((0, 1, 2, *range(131, 259)), -100.0)}


def count(messages: Sequence[Turn]) -> int:
    """A token for every four characters, and three for a message."""
    return sum(3 + -(-len(message["content"]) // 4) for message in messages)


def talk(*lengths: int, system: str | None = None) -> list[Turn]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    roles = "user", "assistant"
    return messages + [{"role": roles[i % 2], "content": f"{i} " * (n // 2)} for i, n in enumerate(lengths)]


def test_a_single_turn_stays_as_it_is() -> None:
    assert plan_compaction(talk(40, 40, system="be brief"), count, 1000) is None
    assert plan_compaction([], count, 1000) is None
    assert plan_compaction([{"role": "system", "content": "be brief"}], count, 1000) is None


def test_the_fewest_oldest_turns_go() -> None:
    messages = talk(800, 800, 800, 800, 800, 800, 800, 80, system="be brief")
    plan = plan_compaction(messages, count, 2000)
    assert plan.first_kept == 5
    assert messages[plan.first_kept]["role"] == "user"
    assert plan.n_after <= 1000
    more = [messages[0], *messages[3:]]
    assert count(more) + plan.n_summary > 1000
    text = "\n\n".join(plan.parts)
    assert all(message["content"].strip() in text for message in messages[1:5])
    assert "be brief" not in text
    assert text.startswith("User: 0 0")
    assert "\n\nAssistant: 1 1" in text


def test_the_last_turn_stays_however_long_it_is() -> None:
    plan = plan_compaction(talk(40, 40, 6000, 40), count, 2000)
    assert plan.first_kept == 2
    assert plan.n_after > 1000


@given(st.lists(st.integers(2, 900), min_size=3, max_size=9), st.integers(600, 3000))
def test_every_part_is_a_request_that_fits(lengths: list[int], n_context: int) -> None:
    plan = plan_compaction(talk(*lengths, system="s" * 40), count, n_context)
    assert plan is not None
    for part in plan.parts:
        assert count(request_for(part)) + plan.n_summary <= n_context
    digits = [c for part in plan.parts for c in part if c.isdigit()]
    assert len(digits) == sum(n // 2 for n in lengths[: plan.first_kept - 1])


@given(st.text(max_size=3000), st.integers(300, 700))
def test_long_texts_are_cut_and_nothing_of_them_is_lost(text: str, n_context: int) -> None:
    parts = parts_of([text], count, n_context)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(count(request_for(part)) + module.summary_tokens(n_context) <= n_context for part in parts)


def test_a_summary_stands_in_the_system_prompt() -> None:
    assert system_with_summary("be brief", "it rained") == f"be brief\n\n{module.HEADING}\nit rained"
    assert system_with_summary(None, "it rained") == f"{module.HEADING}\nit rained"


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="reference") as loaded:
        yield loaded


def run(llm: LLM, parts: tuple[str, ...], options: dict[str, object], n_stopped: int | None = None) -> tuple[int, str]:
    plan = CompactionPlan(1, parts, 6, 100)
    with llm.session() as session:
        running = Compaction(session, plan, llm.prompts.n_tokens, llm.info.n_context, options)
        n_streams = 0
        for stream in running.streams():
            if n_streams == n_stopped:
                stream.stop()
            stream.read()
            assert len(stream.tokens) <= 6
            n_streams += 1
        return n_streams, running.summary


def test_parts_are_summarised_and_their_summaries_again(llm: LLM) -> None:
    with llm.session() as session:
        alone = session.chat(request_for("User: hen"), max_tokens=6, **ENDLESS).read().strip()
    assert run(llm, ("User: hen",), ENDLESS) == (1, alone)
    n_streams, summary = run(llm, ("User: hen", "Assistant: inn"), ENDLESS)
    assert n_streams == 3
    assert summary


def test_a_stopped_or_empty_summary_is_none(llm: LLM) -> None:
    assert run(llm, ("User: hen", "Assistant: inn"), ENDLESS, n_stopped=0) == (1, None)
    assert run(llm, ("User: hen", "Assistant: inn"), ENDLESS, n_stopped=1) == (2, None)
    at_once = {"temperature": 0.0, "logit_bias": {2: 1000.0}}
    assert run(llm, ("User: hen",), at_once) == (1, None)


@pytest.mark.model
def test_the_starter_model_summarises_more_than_its_context_holds(starter_model: Path) -> None:
    said = "The ship Aurora left Bergen on Monday with forty crates of dried cod. "
    messages = [{"role": "user", "content": said * 30}, {"role": "assistant", "content": "Noted."}] * 2
    messages.append({"role": "user", "content": "Where to?"})
    with load(starter_model, n_context=512, spec="off") as llm, llm.session() as session:
        plan = plan_compaction(messages, llm.prompts.n_tokens, llm.info.n_context)
        assert len(plan.parts) > 1
        running = Compaction(session, plan, llm.prompts.n_tokens, llm.info.n_context, {**GREEDY, "max_tokens": 999})
        for stream in running.streams():
            stream.read()
            assert not stream.stats.truncated
        kept = [
            {"role": "system", "content": system_with_summary(None, running.summary)},
            *messages[plan.first_kept :],
        ]
        assert 0 < llm.prompts.n_tokens(kept) <= plan.n_after + 1
