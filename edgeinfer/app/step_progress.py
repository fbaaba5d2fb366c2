"""The current step as a line of text that changes every second.

In: calls of a `Progress`, a clock. Out: the line: what is being done, a bar, how much of it, seconds so far, seconds
left. Draws nothing itself and starts no thread: the caller requests the line again to update it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgeinfer.steps import seconds_left, share_done

BAR_CELLS = 12
SHOWN_S = 2.0
"""Seconds below which the elapsed time is not shown."""


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """The last report, and when this step began."""

    what: str
    done: int
    total: int
    began_s: float


class StepClock:
    """Call it with progress; `line` is the current text."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step: ReportedStep | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Record progress; another name or total, or a smaller number than before, begins a new step."""
        step = self._step
        is_same = step is not None and (step.what, step.total) == (what, total) and done >= step.done
        began_s = step.began_s if step is not None and is_same else self._clock()
        self._step = ReportedStep(what, done, total, began_s)

    @property
    def step(self) -> ReportedStep | None:
        """The current step; None if there is none."""
        return self._step

    @property
    def elapsed_s(self) -> float:
        """Seconds since the step began."""
        return 0.0 if self._step is None else self._clock() - self._step.began_s

    def clear(self) -> None:
        """End the current step."""
        self._step = None

    @property
    def title(self) -> str:
        """A short title of the step; the seconds come first, because the end is cut off if space is short."""
        step, elapsed_s = self._step, self.elapsed_s
        if step is None:
            return ""
        seconds = f"{elapsed_s:.0f} s, " if elapsed_s >= SHOWN_S else ""
        return f"{seconds}{step.what}" + (f": {step.done:,} of {step.total:,}" if step.total else "")

    def line(self, *, bar: bool = True) -> str:
        """The step in one line, "" if there is none."""
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
    """A progress bar in ASCII characters."""
    full = int(share * BAR_CELLS)
    return f"[{'#' * full}{'.' * (BAR_CELLS - full)}]"
