"""Progress on stderr: the current step as a line that disappears when the work is done.

In: what is being done, how much is done, how much there is; byte counts. Out: text on stderr, with carriage returns as
the only terminal control of a line. Quick work shows nothing. While a long step reports nothing, a thread redraws its
line, so that the seconds advance. Without a terminal there are plain lines: one when something takes long, another now
and then, ten for a download, and one as soon as compiling begins. All text is a `StepClock`'s. Does not know what is
done or downloaded.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from types import TracebackType

from edgeinfer.app.plain_text import echo, harmless
from edgeinfer.app.step_clock import EMPTY, FULL, Bar, StepClock, Unit, amount_text
from edgeinfer.steps import COMPILING, DETAIL

QUIET_S = 0.5
BETWEEN_S = 0.1
REDRAW_S = 0.5
FIRST_LINE_S, LINES_S = 2.0, 10.0
"""Without a terminal: until the first line, and between two."""


class ProgressLine:
    """Call it with progress, from any thread; use it as a context manager."""

    def __init__(self, *, terminal: bool | None = None, quiet_s: float | None = None) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        usual_s = QUIET_S if self._terminal else FIRST_LINE_S
        self._next_s = time.monotonic() + (usual_s if quiet_s is None else quiet_s)
        self._clock = StepClock()
        self._compiles = False
        self._width = 0
        self._lock = threading.Lock()
        self._over: threading.Event | None = None  # ends the drawing thread; None while there is none
        self._has_ended = False
        self._makes_way = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_ended = True
        self.clear()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show progress; reports after the end of `with` are ignored, even from other threads."""
        self.report(what, done, total)

    def report(self, what: str, done: int, total: int, *, unit: Unit = "count", rate: float | None = None) -> None:
        """Show progress in bytes, or at a rate that the caller has measured."""
        with self._lock:
            if self._has_ended:
                return
            self._makes_way = False
            self._clock(what, done, total, unit=unit, rate=rate)
            if not self._terminal and what == COMPILING and not self._compiles:
                self._compiles, self._next_s = True, 0.0
            self._draw()
            if self._over is None:
                self._over = threading.Event()
                threading.Thread(target=self._tick, args=(self._over,), name="progress", daemon=True).start()

    def clear(self) -> None:
        """End the step, and erase the line until the next report."""
        with self._lock:
            if self._over is not None:
                self._over.set()
                self._over = None
            self._clock.clear()
            self._erase()

    def make_way(self) -> None:
        """Erase the line until the next report, before something is printed; the step goes on."""
        with self._lock:
            self._makes_way = True
            self._erase()

    def _erase(self) -> None:
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
        if now_s < self._next_s or self._clock.step is None or self._makes_way:
            return
        if self._terminal:
            self._next_s = now_s + BETWEEN_S
            width = shutil.get_terminal_size().columns - 1
            shown = harmless(self._clock.line(bar=stderr_bar(), width=width))[:width]
            sys.stderr.write("\r" + shown.ljust(self._width))
            self._width = len(shown)
        else:
            self._next_s = now_s + LINES_S
            sys.stderr.write(harmless(self._clock.line(bar="none")) + "\n")
        sys.stderr.flush()


def stderr_bar() -> Bar:
    """How bars are drawn on stderr: as blocks, if it can encode them."""
    try:
        (FULL + EMPTY).encode(getattr(sys.stderr, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "ascii"
    return "blocks"


PLAIN_STEPS = 10  # lines per download without a terminal
UNKNOWN_STEP_BYTES = 50_000_000


class PullProgress:
    """Called with bytes done, total bytes and bytes per second; use it as a context manager."""

    def __init__(self, label: str, *, terminal: bool | None = None) -> None:
        self._source = self._label = harmless(label)
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._line = ProgressLine(terminal=True, quiet_s=0.0) if self._terminal else None
        self._next_bytes, self._printed_bytes = 0, -1

    def __enter__(self) -> PullProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.__exit__(kind, error, trace)

    def __call__(self, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        """Show progress of the download."""
        self._show(self._source, done_bytes, total_bytes, bytes_per_s)

    def follow(self, label: str, done_bytes: int, total_bytes: int | None) -> None:
        """Show progress of another process's download, under a label that says so."""
        self._show(harmless(label), done_bytes, total_bytes, 0.0)

    def _show(self, label: str, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        if label != self._label:
            self._label, self._next_bytes, self._printed_bytes = label, 0, -1
        if self._line is not None:
            self._line.report(label, done_bytes, total_bytes or 0, unit="bytes", rate=bytes_per_s)
        elif done_bytes >= self._next_bytes or (done_bytes == total_bytes and done_bytes != self._printed_bytes):
            self._printed_bytes = done_bytes
            self._print(done_bytes, total_bytes, bytes_per_s)

    def pause(self) -> None:
        """Remove the line from the terminal; the next report restores it."""
        if self._line is not None:
            self._line.clear()

    def _print(self, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        step_bytes = UNKNOWN_STEP_BYTES if total_bytes is None else max(1, total_bytes // PLAIN_STEPS)
        self._next_bytes = (done_bytes // step_bytes + 1) * step_bytes
        if total_bytes is not None:
            self._next_bytes = min(self._next_bytes, total_bytes + 1)
        if not bytes_per_s and not done_bytes and total_bytes is None:  # nothing is known yet
            echo(self._label, err=True)
            return
        clock = StepClock()
        clock(self._label, done_bytes, total_bytes or 0, unit="bytes", rate=bytes_per_s)
        echo(clock.line(bar="none"), err=True)


def waiting_text(pid: int | None, source: str) -> str:
    """Which process is being waited for."""
    if pid == os.getpid():
        return f"waiting for the pull of {source} that is under way"
    who = "another process" if pid is None else f"process {pid}"
    return f"waiting for {who}, which is pulling {source}"


def how_far(done_bytes: int, total_bytes: int | None) -> str:
    """The end of a step's name: how much another process has; empty while nothing is known."""
    known = done_bytes or total_bytes
    return f"{DETAIL}{amount_text(done_bytes, total_bytes or 0, 'bytes')}" if known else ""
