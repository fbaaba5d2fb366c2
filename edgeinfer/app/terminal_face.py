"""Opening a model as commands show it: progress on stderr, questions where someone answers.

In: reports, a model's header, a download that nobody asked for. Out: text on stderr; DoesNotFit and ModelNotFound for a
model that is not to be fetched. Opens no model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from edgeinfer.app.progress_line import ProgressLine
from edgeinfer.app.pull_progress import PullProgress, waiting_text
from edgeinfer.errors import DoesNotFit, ModelNotFound

if TYPE_CHECKING:
    from edgeinfer.app.opening_face import Download
    from edgeinfer.models.download.policy import Progress as PullReport
    from edgeinfer.models.gguf import Header
    from edgeinfer.settings import Settings
    from edgeinfer.steps import Progress


class TerminalFace:
    """One line of progress on stderr; a download makes way for a question."""

    def __init__(self) -> None:
        self._pull: PullProgress | None = None
        self._line: ProgressLine | None = None

    def loading(self) -> AbstractContextManager[Progress]:
        """A line on stderr; now and then a line of its own where that is no terminal."""
        return ProgressLine(lines=True)

    @contextmanager
    def pulling(self, source: str) -> Iterator[PullReport]:
        """A bar on stderr, or lines where that is no terminal."""
        with ProgressLine() as self._line, PullProgress(source) as self._pull:
            self._line(f"looking up {source}", 0, 0)
            yield self._pulled

    def _pulled(self, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        """A report of the download, which takes the place of looking the model up."""
        assert self._line is not None
        assert self._pull is not None
        self._line.clear()
        self._pull(done_bytes, total_bytes, bytes_per_s)

    def waiting(self, source: str, pid: int | None, done_bytes: int, total_bytes: int | None) -> None:
        """The bar of the download, with who makes it."""
        if self._line is not None:
            self._line.clear()
        if self._pull is not None:
            self._pull.follow(waiting_text(pid, source), done_bytes, total_bytes)

    def found(self, path: Path, settings: Settings) -> None:
        """No other model is open: there is nothing to decide."""

    def note(self, text: str) -> None:
        """A line on stderr."""
        typer.echo(f"note: {text}", err=True)

    def approve(self, header: Header, nbytes: int) -> None:
        """Ask where someone answers. Raises DoesNotFit."""
        self._make_way()
        approve_fit(header, nbytes)

    def agree(self, download: Download) -> None:
        """Say what is about to be fetched, and ask where someone answers. Raises ModelNotFound for a no."""
        self._make_way()
        typer.echo(str(download), err=True)
        if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
            return
        if not typer.confirm("Fetch it?", default=True, err=True):
            raise ModelNotFound(download.refused)

    def chosen(self, name: str, nbytes: int) -> None:
        """Nothing: whoever runs a command knows."""

    def _make_way(self) -> None:
        """Take progress off the terminal, for text."""
        if self._line is not None:
            self._line.clear()
        if self._pull is not None:
            self._pull.pause()


def approve_fit(header: Header, nbytes: int) -> None:
    """Let a model through that fits this machine, or runs as its disk allows; ask about others where someone answers.

    Raises DoesNotFit, with the numbers and what would work.
    """
    from edgeinfer.app.fit import check_fits

    try:
        notice = check_fits(header, nbytes)
        if notice is not None:
            typer.echo(f"note: {notice}", err=True)
    except DoesNotFit as refusal:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise DoesNotFit(f"{refusal}; edgeinfer pull --force fetches it all the same") from None
        typer.echo(str(refusal), err=True)
        if not typer.confirm("Fetch it all the same?", default=False, err=True):
            raise DoesNotFit("not fetched; a smaller model or quant would fit") from None
