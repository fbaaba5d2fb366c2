"""Thoughts that are cut: at ends of sentences, and answered from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from tests.unit.engine.several.led import alone, gathered

QUESTION = [{"role": "user", "content": "the rain in the tin"}]


@pytest.fixture(scope="module")
def thinker(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="cpu", n_sessions=6, chat_template="deepseek-r1") as loaded:
        yield loaded


@pytest.mark.parametrize("lead", ["cut", "cut:every=8"])
def test_thoughts_are_cut_and_answered(thinker: LLM, lead: str) -> None:
    options = {"max_tokens": 60, "temperature": 1.0, "logit_bias": {"\n": 4.0}}
    several = thinker.several(QUESTION, 4, lead=lead, pick="likely", seed=6, ignore_eos=True, **options)
    found = gathered(several)
    assert len(several.answers) == 4
    trunk = several.answers[0]
    assert trunk.reasoning
    for number, fork in enumerate(several.forks):
        answer = several.answers[number]
        assert answer.text == found[number]
        own = alone(thinker, answer)
        assert own.tokens[: len(answer.tokens)] == answer.tokens
        if fork is not None:
            assert fork.parent == 0
            text = trunk._sequence.output.text(fork.n_tokens)
            assert text.endswith("\n")
            assert answer.reasoning.strip() == text.strip()
            assert answer.text.startswith(text)
            assert "</think>" in answer.text
            assert answer.content
    if lead == "cut:every=8":
        places = [fork.n_tokens for fork in several.forks if fork is not None]
        assert all(after - before >= 8 for before, after in zip([0, *places], places, strict=False))


def test_cut_thoughts_lead_to_answers_that_match(thinker: LLM) -> None:
    options = {"max_tokens": 60, "temperature": 1.0, "logit_bias": {"\n": 4.0}}
    several = thinker.several(QUESTION, 3, lead="cut:every=6", answer="text", regex="(yes|no)", seed=6, **options)
    several.read()
    assert len(several.answers) == 3
    for answer, fork in zip(several.answers, several.forks, strict=True):
        if fork is not None and answer.stats is not None and answer.stats.finish_reason == "stop":
            assert answer.content in ("yes", "no")
