"""Opening a model as commands show it: progress on stderr, a question where someone answers.

In: reports and a model's header. Out: text on stderr, and DoesNotFit for a model that is not to be fetched. Opens no
model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import typer

from edgeinfer.app.progress_line import ProgressLine
from edgeinfer.app.pull_progress import PullProgress
from edgeinfer.errors import DoesNotFit

if TYPE_CHECKING:
    from edgeinfer.backends.base import Progress
    from edgeinfer.models.gguf import Header


class TerminalFace:
    """One line of progress on stderr; a download makes way for a question."""

    def __init__(self) -> None:
        self._pull: PullProgress | None = None

    def loading(self) -> AbstractContextManager[Progress]:
        """A line on stderr."""
        return ProgressLine()

    @contextmanager
    def pulling(self, source: str) -> Iterator[PullProgress]:
        """A bar on stderr, or lines where that is no terminal."""
        with PullProgress(source) as self._pull:
            yield self._pull

    def approve(self, header: Header, nbytes: int) -> None:
        """Ask where someone answers. Raises DoesNotFit."""
        if self._pull is not None:
            self._pull.pause()
        approve_fit(header, nbytes)


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
