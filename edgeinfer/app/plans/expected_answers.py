"""Compares the seconds of several answers to one question with what the machine's profile predicted.

In: a loaded model, answers that are over. Out: predicted seconds, a line of text. As `expectation`, and it measures
nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeinfer.app.plans.expectation import MADE_MIN, adjustment_of, predictors_of
from edgeinfer.scheduling.several.budgets import side_by_side_s

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.scheduling.prediction import Predictor


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
    n_tokens = sum(each.n_generated for each in stats)
    return adjustment.prompt_s(read_s) + adjustment.together_s(_passes_s(maker, stats), n_tokens)


def note_answers_for_calibration(llm: LLM, stats: Sequence[Stats], seconds: float) -> None:
    """Record the time of answers that were written side by side in `seconds`, as `note_for_calibration` does of one."""
    from edgeinfer.engine.measure.profiles import ProfileStore

    first_s, n_tokens = stats[0].ttft_s, sum(each.n_generated for each in stats)
    found = predictors_of(llm) if llm.telemetry.policy.idle_work else None
    if found is None or first_s is None or len(stats) < 2 or n_tokens < MADE_MIN:
        return
    profile, _, maker = found
    calibration = ProfileStore().calibration(profile.fingerprint, streams=llm.telemetry.streamed is not None)
    step_s = calibration.adjustment().step_s or 0.0
    calibration.note_together(_passes_s(maker, stats) + n_tokens * step_s, seconds - first_s)
    calibration.save()


def _passes_s(maker: Predictor, stats: Sequence[Stats]) -> float:
    """Predicted seconds of the passes of answers side by side, without corrections."""
    return side_by_side_s(maker.together_s, [each.n_generated for each in stats], stats[0].n_prompt)


def expected_answers_lines(predicted_s: float | None, measured_s: float, n_answers: int) -> list[str]:
    """Predicted and measured seconds side by side; nothing without a prediction."""
    if predicted_s is None:
        return []
    return [f"predicted: {n_answers} answers in {predicted_s:.2f} s, one token each per pass (took {measured_s:.2f} s)"]
