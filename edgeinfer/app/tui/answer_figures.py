"""From the engine's numbers of an answer to what is kept and shown of it.

In: `Stats`, marks. Out: `Figures`, a state, runs of drafted text. Knows no thread and no widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeinfer.app.sessions.records import Figures, State
from edgeinfer.app.tui.engine import Marked, Runs

if TYPE_CHECKING:
    from edgeinfer.engine.stats import Stats


def figures_of(stats: Stats) -> Figures:
    """The numbers of an answer that are kept with it."""
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


def runs_of(marks: Sequence[Marked], n_before: int) -> Runs:
    """Who drafted what of an answer, of which so many characters were there before."""
    before: Runs = ((n_before, None),) if n_before else ()
    return (*before, *((mark.n_characters, mark.source) for mark in marks))
