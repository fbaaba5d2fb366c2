"""Progress on stderr: the current step as a line that disappears when the work is done, and downloads as a bar.

In: what is being done, how much is done, how much there is; byte counts. Out: text on stderr, with carriage returns as
the only terminal control of a line. Quick work shows nothing. While a long step reports nothing, a thread redraws its
line, so that the seconds advance. Without a terminal, downloads are plain lines; with `lines`, so are the beginning of
compiling and anything that takes long. Does not know what is done or downloaded.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from edgeinfer.app.plain_text import echo, harmless
from edgeinfer.steps import COMPILING, seconds_left, share_done

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

QUIET_S = 0.5
BETWEEN_S = 0.1
REDRAW_S = 0.5
LINES_S = 10.0


class ProgressLine:
    """Call it with progress, from any thread; use it as a context manager."""

    def __init__(self, *, terminal: bool | None = None, lines: bool = False) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._lines = lines and not self._terminal
        now_s = time.monotonic()
        self._next_s = now_s + (QUIET_S if self._terminal else LINES_S)
        self._clock = StepClock()
        self._compiles = False
        self._width = 0
        self._lock = threading.Lock()
        self._over: threading.Event | None = None  # ends the drawing thread; None while there is none
        self._has_ended = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_ended = True
        self.clear()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show progress; reports after the end of `with` are ignored, even from other threads."""
        if not self._terminal and not self._lines:
            return
        with self._lock:
            if self._has_ended:
                return
            self._clock(what, done, total)
            if self._lines and what == COMPILING and not self._compiles:
                self._compiles, self._next_s = True, 0.0
            self._draw()
            if self._over is None:
                self._over = threading.Event()
                threading.Thread(target=self._tick, args=(self._over,), name="progress", daemon=True).start()

    def clear(self) -> None:
        """Erase the line until the next report."""
        with self._lock:
            if self._over is not None:
                self._over.set()
                self._over = None
            self._clock.clear()
            if self._width:
                sys.stderr.write("\r" + " " * self._width + "\r")
                sys.stderr.flush()
                self._width = 0

    def _tick(self, over: threading.Event) -> None:
        while not over.wait(REDRAW_S):
            with self._lock:
                if not over.is_set():
                    self._draw()

    def _draw(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s or self._clock.step is None:
            return
        if self._lines:
            self._next_s = now_s + LINES_S
            sys.stderr.write(harmless(self._clock.line(bar=False)) + "\n")
        else:
            self._next_s = now_s + BETWEEN_S
            shown = harmless(self._clock.line())[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write("\r" + shown.ljust(self._width))
            self._width = len(shown)
        sys.stderr.flush()


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


PLAIN_STEPS = 10  # lines per download without a terminal
UNKNOWN_STEP_BYTES = 50_000_000
MEGABYTE = 1_000_000


class PullProgress:
    """Called with bytes done, total bytes and bytes per second; use it as a context manager."""

    def __init__(self, label: str, *, terminal: bool | None = None) -> None:
        self._source = self._label = harmless(label)
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bar: Bar | None = None
        self._next_bytes, self._printed_bytes = 0, -1

    def __enter__(self) -> PullProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def __call__(self, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        """Show progress of the download."""
        self._show(self._source, done_bytes, total_bytes, bytes_per_s)

    def follow(self, label: str, done_bytes: int, total_bytes: int | None) -> None:
        """Show progress of another process's download, under a label that says so."""
        self._show(harmless(label), done_bytes, total_bytes, 0.0)

    def _show(self, label: str, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        if label != self._label:
            self._label, self._next_bytes, self._printed_bytes = label, 0, -1
        if self._terminal:
            self._draw(done_bytes, total_bytes)
        elif done_bytes >= self._next_bytes or (done_bytes == total_bytes and done_bytes != self._printed_bytes):
            self._printed_bytes = done_bytes
            self._print(done_bytes, total_bytes, bytes_per_s)

    def pause(self) -> None:
        """Remove the bar from the terminal; the next report restores it."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, done_bytes: int, total_bytes: int | None) -> None:
        if self._bar is None:
            self._bar = _new_bar()
            self._bar.start()
            self._bar.add_task(self._label, total=total_bytes)
        self._bar.update(self._bar.task_ids[0], description=self._label, completed=done_bytes, total=total_bytes)

    def _print(self, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        from edgeinfer.text_values import size_text

        step_bytes = UNKNOWN_STEP_BYTES if total_bytes is None else max(1, total_bytes // PLAIN_STEPS)
        self._next_bytes = (done_bytes // step_bytes + 1) * step_bytes
        if total_bytes is not None:
            self._next_bytes = min(self._next_bytes, total_bytes + 1)
        if not bytes_per_s and not done_bytes and total_bytes is None:  # nothing is known yet
            echo(self._label, err=True)
            return
        whole = "" if total_bytes is None else f" of {size_text(total_bytes)}"
        rate = f", {size_text(int(bytes_per_s))}/s" if bytes_per_s else ""
        echo(f"{self._label}: {size_text(done_bytes)}{whole}{rate}", err=True)


def waiting_text(pid: int | None, source: str) -> str:
    """Which process is being waited for."""
    if pid == os.getpid():
        return f"waiting for the pull of {source} that is under way"
    who = "another process" if pid is None else f"process {pid}"
    return f"waiting for {who}, which is pulling {source}"


def how_far(done_bytes: int, total_bytes: int | None) -> str:
    """The end of a progress line, in megabytes; empty while nothing is known."""
    if total_bytes:
        return f": {done_bytes // MEGABYTE} of {total_bytes // MEGABYTE} MB"
    return f": {done_bytes // MEGABYTE} MB" if done_bytes else ""


def _new_bar() -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
