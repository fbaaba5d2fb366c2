"""Retry policy and progress reporting of a download.

In: nothing. Out: `DownloadPolicy` (tries, waits, sizes), the `Progress` callback type, and `ProgressMeter`, which turns
byte counts into callbacks. Independent of what is downloaded and how progress is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.errors import EdgeInferError

Progress = Callable[[int, int | None, float], None]
"""Called with bytes done, total bytes (None while unknown) and bytes per second; may raise PullStopped."""

REPORT_EVERY_S = 0.1
RATE_MEMORY = 0.7  # weight of the older rate in the moving average


class PullStopped(EdgeInferError):
    """Raised by a `Progress` to end a transfer. Received data is kept, and the next pull resumes from it.

    `keeps` False: it is deleted. `parts`: its files, set once the pull has ended.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        super().__init__("the pull was stopped; the same one goes on from there" if keeps else "the pull was cancelled")
        self.keeps = keeps
        self.parts: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class DownloadPolicy:
    """Retry settings of a download."""

    attempts: int = 5  # consecutive tries that received almost nothing
    backoff_s: float = 0.5  # wait before the second try, doubled for each further one
    backoff_cap_s: float = 8.0
    stall_s: float = 30.0  # a connection that delivers nothing for this long is closed
    chunk_bytes: int = 1 << 18
    progress_bytes: int = 1 << 18  # a try that received this much resets the count of tries
    report_every_s: float = REPORT_EVERY_S

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after that many consecutive failures (1 = the first)."""
        return min(self.backoff_s * 2.0 ** (failures - 1), self.backoff_cap_s)


def silent(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
    """A `Progress` that shows nothing."""


def shifted(progress: Progress, before_bytes: int, total_bytes: int) -> Progress:
    """Report one file's `progress` as that of a model of which `before_bytes` are done."""

    def report(done_bytes: int, file_bytes: int | None, bytes_per_s: float) -> None:
        progress(before_bytes + done_bytes, total_bytes if file_bytes is not None else None, bytes_per_s)

    return report


class ProgressMeter:
    """Calls `progress` at most once every `every_s`, with a moving average of the rate."""

    def __init__(
        self, progress: Progress, every_s: float = REPORT_EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress = progress
        self._every_s = every_s
        self._clock = clock
        self._last_s = clock()
        self._last_bytes: int | None = None
        self._rate = 0.0

    def start(self, done_bytes: int, total_bytes: int | None) -> None:
        """Record and report the bytes that exist before anything is received."""
        self._last_s, self._last_bytes = self._clock(), done_bytes
        self._progress(done_bytes, total_bytes, self._rate)

    def report(self, done_bytes: int, total_bytes: int | None, *, last: bool = False) -> None:
        """Report `done_bytes` if enough time has passed, and always for the last report."""
        now_s = self._clock()
        passed_s = now_s - self._last_s
        if passed_s < self._every_s and not last:
            return
        if passed_s > 0 and self._last_bytes is not None:
            rate = (done_bytes - self._last_bytes) / passed_s
            self._rate = rate if self._rate == 0 else RATE_MEMORY * self._rate + (1 - RATE_MEMORY) * rate
        self._last_s, self._last_bytes = now_s, done_bytes
        self._progress(done_bytes, total_bytes, self._rate)
