"""Answers that are written at the same time are drafted from each other's texts, and that changes none of them."""

from __future__ import annotations

from pathlib import Path

from edgeinfer.engine.loading import load

PROMPT = "a fox and a hen and an owl met by the river; "
OPTIONS = {"temperature": 1.1, "max_tokens": 72, "seed": 5}


def test_what_one_answer_has_written_is_drafted_for_the_others(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu", spec=8, history=False, n_sessions=2) as llm:
        ahead, behind = llm.complete(PROMPT, **OPTIONS), llm.complete(PROMPT, **OPTIONS)
        while ahead.live.n_generated < 60:
            next(ahead)
        assert ahead.stats is None  # it goes on
        steps_of_60 = ahead.live.steps
        text = behind.read()
        assert behind.stats is not None
        assert behind.stats.draft is not None
        assert sum(source.accepted for source in behind.stats.draft.sources.values()) > 30
        assert behind.stats.steps < steps_of_60 / 2
        assert "".join([ahead.text, *ahead]) == text
    with load(tiny_model, device="cpu", spec="off", n_sessions=1) as llm:
        assert llm.complete(PROMPT, **OPTIONS).read() == text
