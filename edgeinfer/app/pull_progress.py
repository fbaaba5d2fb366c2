"""Download progress on stderr: a bar on a terminal, plain lines elsewhere.

In: byte counts. Out: text on stderr. Prints nothing until the first bytes are reported, and can be cleared for a
question. Does not know what is downloaded.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

PLAIN_STEPS = 10  # lines per download without a terminal
UNKNOWN_STEP_BYTES = 50_000_000
MEGABYTE = 1_000_000


class PullProgress:
    """Called with bytes done, total bytes and bytes per second; use it as a context manager."""

    def __init__(self, label: str, *, terminal: bool | None = None) -> None:
        self._source = self._label = label
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
        self._show(label, done_bytes, total_bytes, 0.0)

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
            typer.echo(self._label, err=True)
            return
        whole = "" if total_bytes is None else f" of {size_text(total_bytes)}"
        rate = f", {size_text(int(bytes_per_s))}/s" if bytes_per_s else ""
        typer.echo(f"{self._label}: {size_text(done_bytes)}{whole}{rate}", err=True)


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
