"""The line under an answer: how it ended, and its numbers.

In: kept messages. Out: words. Knows no widgets.
"""

from __future__ import annotations

from edgeinfer.app.counting import counted
from edgeinfer.app.sessions.records import Figures, KeptMessage


def note_of(message: KeptMessage) -> str:
    """The line under an answer: how it ended, and its numbers."""
    ended = {
        "stopped": "stopped",
        "cut": "cut: the context is full",
        "failed": "failed",
        "writing": "being written",
    }.get(message.state, "")
    return " · ".join(part for part in (ended, *figure_parts(message.figures), message.model or "") if part)


def figure_parts(figures: Figures | None) -> tuple[str, ...]:
    """The numbers of an answer, in words."""
    if figures is None:
        return ()
    rate = "" if figures.decode_tok_s is None else f", {figures.decode_tok_s:.0f} tok/s"
    reused = f"reused {figures.n_cached:,} of {figures.n_prompt:,} tokens" if figures.n_cached else ""
    per_step = figures.accepted_per_step
    drafted = "" if per_step is None or per_step < 1.005 else f"{per_step:.2f} tokens per step"
    return (f"{counted(figures.n_generated, 'token')}{rate}", reused, drafted)
