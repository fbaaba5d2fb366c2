"""The numbers of an answer: what its steps took besides their passes, and whether it was a model's first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.scheduler.stats import GenerationMeter


def meter_of(pass_seconds: Sequence[float | None]) -> GenerationMeter:
    """A meter of steps that end a second apart."""
    seconds = count(0.0, 1.0)
    meter = GenerationMeter(clock=lambda: next(seconds))
    for pass_s in pass_seconds:
        meter.step(1, pass_s)
    return meter


def test_a_step_takes_what_its_pass_does_not_and_the_first_one_counts_as_the_prompts() -> None:
    assert meter_of([0.9, 0.75, 0.25]).step_s == pytest.approx(0.5)


@pytest.mark.parametrize("pass_seconds", [[], [0.5], [0.5, 0.5, None, 0.5]])
def test_of_too_few_steps_and_of_passes_with_others_nothing_is_said(pass_seconds: list[float | None]) -> None:
    assert meter_of(pass_seconds).step_s is None


def test_passes_that_seem_to_take_longer_than_steps_leave_nothing() -> None:
    assert meter_of([0.5, 2.0]).step_s == 0.0


def test_the_first_answer_of_a_model_is_known_and_every_step_is_measured(home: Path, tiny_model: Path) -> None:
    with load(tiny_model, device="reference") as llm:
        found = []
        for text in ("once upon a time", "the rain"):
            stream = llm.complete(text, max_tokens=8)
            assert "".join(stream) == stream.text
            assert stream.stats is not None
            found.append(stream.stats)
    assert [stats.is_first for stats in found] == [True, False]
    for stats in found:
        assert stats.step_s is not None
        assert stats.decode_tok_s is not None
        assert 0 <= stats.step_s < 1 / stats.decode_tok_s
