"""Compares the seconds of several answers to one question with what the machine's profile predicted.

In: a loaded model, answers that are over. Out: predicted seconds, a line of text. As `expectation`, and it measures
nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeinfer.app.plans.expectation import adjustment_of, predictors_of
from edgeinfer.scheduling.several.budgets import side_by_side_s

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.scheduler.stats import Stats


def expected_answers_s(llm: LLM, stats: Sequence[Stats]) -> float | None:
    """Predicted seconds of answers that were written side by side, one token each per pass; None without a profile.

    The prompt is read once. Corrected by earlier answers.
    """
    found = predictors_of(llm)
    if found is None:
        return None
    profile, reader, maker = found
    first = stats[0]
    adjustment = adjustment_of(profile, streams=llm.telemetry.streamed is not None, is_first=first.is_first)
    read_s = reader.prompt_s(first.n_prompt - first.n_cached, first.n_cached)
    written_s = side_by_side_s(
        lambda n_answers, n_cached: adjustment.tokens_s(maker.together_s(n_answers, n_cached), n_answers),
        [each.n_generated for each in stats],
        first.n_prompt,
    )
    return adjustment.prompt_s(read_s) + written_s


def expected_answers_lines(predicted_s: float | None, measured_s: float, n_answers: int) -> list[str]:
    """Predicted and measured seconds side by side; nothing without a prediction."""
    if predicted_s is None:
        return []
    return [f"predicted: {n_answers} answers in {predicted_s:.2f} s, one token each per pass (took {measured_s:.2f} s)"]
