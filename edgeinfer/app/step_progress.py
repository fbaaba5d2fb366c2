"""The step that is being done just now, as a line of text that changes every second.

In: calls of a `Progress`, a clock. Out: the line: what is done, a bar, how much of it, seconds so far, seconds left.
Draws nothing itself and starts no thread: whoever shows the line asks for it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.steps import seconds_left, share_done

BAR_CELLS = 12
SHOWN_S = 2.0
"""Seconds of a step that are not worth showing."""


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """What was reported last, and when a step of this name began."""

    what: str
    done: int
    total: int
    began_s: float


class StepClock:
    """Call it with progress; `line` is what to show now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step: ReportedStep | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Note how far a step is; another name, or a smaller number than before, begins another step."""
        step = self._step
        is_same = step is not None and (step.what, step.total) == (what, total) and done >= step.done
        began_s = step.began_s if step is not None and is_same else self._clock()
        self._step = ReportedStep(what, done, total, began_s)

    @property
    def step(self) -> ReportedStep | None:
        """What is being done; None while nothing is."""
        return self._step

    @property
    def elapsed_s(self) -> float:
        """Seconds since the step began."""
        return 0.0 if self._step is None else self._clock() - self._step.began_s

    def clear(self) -> None:
        """Nothing is being done any more."""
        self._step = None

    @property
    def title(self) -> str:
        """The step in a few words; seconds come first, for the end is cut where room is short."""
        step, elapsed_s = self._step, self.elapsed_s
        if step is None:
            return ""
        seconds = f"{elapsed_s:.0f} s, " if elapsed_s >= SHOWN_S else ""
        return f"{seconds}{step.what}" + (f": {step.done:,} of {step.total:,}" if step.total else "")

    def line(self, *, bar: bool = True) -> str:
        """The step in one line, "" while nothing is being done."""
        step, elapsed_s = self._step, self.elapsed_s
        if step is None:
            return ""
        text = step.what
        if bar and (share := share_done(step.what, step.done, step.total, elapsed_s)) is not None:
            text += f" {bar_text(share)}"
        elif step.total:
            text += ":"
        parts = [f"{step.done:,} of {step.total:,}"] if step.total else []
        left_s = seconds_left(step.what, step.done, step.total, elapsed_s)
        if elapsed_s >= SHOWN_S:
            parts.append(f"{elapsed_s:.0f} s")
        if left_s is not None and left_s >= 1:
            parts.append(f"about {left_s:.0f} s left")
        return text + (" " if step.total else ", " if parts else "") + ", ".join(parts)


def bar_text(share: float) -> str:
    """A bar of characters that every terminal has."""
    full = int(share * BAR_CELLS)
    return f"[{'#' * full}{'.' * (BAR_CELLS - full)}]"
