"""Selects the statistics of an answer that are saved with it.

In: `Stats`. Out: `Figures`, a state. Knows neither the database nor the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.app.sessions.chat import LOST
from edgeinfer.app.sessions.records import Figures, State

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stats import Stats


def figures_of(stats: Stats) -> Figures:
    """The statistics that are saved with an answer."""
    return Figures(
        n_prompt=stats.n_prompt,
        n_cached=stats.n_cached,
        n_generated=stats.n_generated,
        finish_reason=stats.finish_reason,
        truncated=stats.truncated,
        ttft_s=stats.ttft_s,
        prefill_tok_s=stats.prefill_tok_s,
        decode_tok_s=stats.decode_tok_s,
        accepted_per_step=stats.accepted_per_step,
        joules_per_token=stats.joules_per_token,
        seed=stats.seed,
    )


def state_of(stats: Stats) -> State:
    """How an answer ended."""
    if stats.finish_reason == "cancelled":
        return "stopped"
    return "cut" if stats.finish_reason == "length" and stats.truncated else "whole"


def text_of(text: str, stats: Stats) -> str:
    """The text to save: without a trailing partial character if `max_tokens` or the context cut it off."""
    return text.removesuffix(LOST) if stats.finish_reason == "length" else text
