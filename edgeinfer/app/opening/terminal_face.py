"""Shows the opening of a model in a terminal: progress on stderr, and questions if there is a user to answer.

In: reports, a model's header, a download that the user did not ask for. Out: text on stderr; DoesNotFit and
ModelNotFound for a model that is not to be downloaded. Opens no model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from edgeinfer.app.plain_text import echo
from edgeinfer.app.progress import ProgressLine, PullProgress, waiting_text
from edgeinfer.errors import DoesNotFit, ModelNotFound

if TYPE_CHECKING:
    from edgeinfer.app.opening.face import Download
    from edgeinfer.models.download.policy import Progress as PullReport
    from edgeinfer.models.gguf import Header
    from edgeinfer.settings import Settings
    from edgeinfer.steps import Progress


class TerminalFace:
    """One line of progress on stderr; a download is cleared for a question."""

    def __init__(self) -> None:
        self._pull: PullProgress | None = None
        self._line: ProgressLine | None = None

    def loading(self) -> AbstractContextManager[Progress]:
        """A progress line on stderr; occasional separate lines if stderr is not a terminal."""
        return ProgressLine()

    @contextmanager
    def pulling(self, source: str) -> Iterator[PullReport]:
        """A line on stderr, or several if it is not a terminal."""
        with ProgressLine() as self._line, PullProgress(source) as self._pull:
            self._line(f"looking up {source}", 0, 0)
            yield self._pulled

    def _pulled(self, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        """Show download progress in place of the look-up message."""
        assert self._line is not None
        assert self._pull is not None
        self._line.clear()
        self._pull(done_bytes, total_bytes, bytes_per_s)

    def waiting(self, source: str, pid: int | None, done_bytes: int, total_bytes: int | None) -> None:
        """Show the progress of the other process's download."""
        if self._line is not None:
            self._line.clear()
        if self._pull is not None:
            self._pull.follow(waiting_text(pid, source), done_bytes, total_bytes)

    def found(self, path: Path, settings: Settings) -> None:
        """No other model is open: there is nothing to decide."""

    def note(self, text: str) -> None:
        """Print a line on stderr."""
        echo(f"note: {text}", err=True)

    def approve(self, header: Header, nbytes: int) -> None:
        """Ask the user, if there is one. Raises DoesNotFit."""
        self._make_way()
        approve_fit(header, nbytes)

    def agree(self, download: Download) -> None:
        """Say what is about to be downloaded, and ask the user, if there is one. Raises ModelNotFound for a no."""
        self._make_way()
        echo(str(download), err=True)
        if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
            return
        if not typer.confirm("Fetch it?", default=True, err=True):
            raise ModelNotFound(download.refused)

    def first_model(self) -> str | None:
        """The starter model: a command answers now, and `edgeinfer models --recommend` lists others."""
        return None

    def chosen(self, name: str, nbytes: int) -> None:
        """Nothing: the user who runs a command knows the model."""

    def _make_way(self) -> None:
        """Clear progress from the terminal before printing text."""
        if self._line is not None:
            self._line.clear()
        if self._pull is not None:
            self._pull.pause()


def approve_fit(header: Header, nbytes: int) -> None:
    """Approve a model that fits this machine, or that its disk can stream; for others ask the user, if there is one.

    Raises DoesNotFit, with the numbers and what would work.
    """
    from edgeinfer.app.plans.fit import check_fits

    try:
        notice = check_fits(header, nbytes)
        if notice is not None:
            echo(f"note: {notice}", err=True)
    except DoesNotFit as refusal:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise DoesNotFit(f"{refusal}; edgeinfer pull --force fetches it all the same") from None
        echo(str(refusal), err=True)
        if not typer.confirm("Fetch it all the same?", default=False, err=True):
            raise DoesNotFit("not fetched; a smaller model or quant would fit") from None
