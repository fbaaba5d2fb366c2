"""One line on stderr that shows the current step on a terminal and disappears when the work is done.

In: what is being done, how much is done, how much there is. Out: text on stderr, with carriage returns as the only
terminal control. Quick work shows nothing. While a long step reports nothing, a thread redraws the line, so that the
seconds advance. With `lines` and without a terminal: one line when compiling begins, and occasional lines for anything
that takes long.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType

from edgeinfer.app.step_progress import StepClock
from edgeinfer.steps import COMPILING

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
            sys.stderr.write(self._clock.line(bar=False) + "\n")
        else:
            self._next_s = now_s + BETWEEN_S
            shown = self._clock.line()[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write("\r" + shown.ljust(self._width))
            self._width = len(shown)
        sys.stderr.flush()
