"""One line on stderr that says what is going on, where a terminal shows it; it is gone when the work is done.

In: what, how much is done, how much there is. Out: text on stderr, without terminal control beyond carriage returns.
Quick work shows nothing.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType

QUIET_S = 0.5
BETWEEN_S = 0.1


class ProgressLine:
    """Call it with progress; use it with `with`."""

    def __init__(self, *, terminal: bool | None = None) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._next_s = time.monotonic() + QUIET_S
        self._width = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far something is."""
        if not self._terminal or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + BETWEEN_S
        shown = f"{what}: {done} of {total}" if total else what
        sys.stderr.write("\r" + shown.ljust(self._width))
        sys.stderr.flush()
        self._width = len(shown)

    def clear(self) -> None:
        """Take the line away."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
