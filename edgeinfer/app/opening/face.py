"""The interface between opening a model and whatever displays it and asks the user.

In: progress of loading and pulling, a question about a model that may not fit. Out: function calls; nothing is printed.
A `WatchedFace` can be cancelled from any thread: opening then ends at its next report. Opens nothing itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from edgeinfer.models.download.header import Approve
    from edgeinfer.models.download.policy import Progress as PullProgress
    from edgeinfer.models.gguf import Header
    from edgeinfer.settings import Settings
    from edgeinfer.steps import Progress


@dataclass(frozen=True, slots=True)
class Download:
    """A model about to be downloaded although the user did not name it; `nbytes`: its size, None if unknown.

    `n_here`: other models on this computer, none of which was used yet.
    """

    name: str
    source: str
    nbytes: int | None
    n_here: int = 0

    def __str__(self) -> str:
        from edgeinfer.text_values import size_text

        size = "of unknown size" if self.nbytes is None else size_text(self.nbytes)
        fetching = f"fetching the starter model {self.name} from {self.source}, {size}."
        if not self.n_here:
            return f"There is no model yet: {fetching}"
        return f"No model was used yet: {fetching} Or -m NAME takes one that edgeinfer ls lists."

    @property
    def refused(self) -> str:
        """What to do instead of downloading it."""
        others = "and there is no other model" if not self.n_here else "and no model was used before"
        named = "" if not self.n_here else "name one that edgeinfer ls lists with -m NAME, "
        return (
            f"{self.name} was not fetched, {others}; {named}give a GGUF file with -m PATH, or fetch "
            "another model: edgeinfer pull hf:USER/REPO:QUANT"
        )


class OpeningFace(Protocol):
    """Shows pulling and loading of a model, and decides about one that may not fit or that the user did not name."""

    def loading(self) -> AbstractContextManager[Progress]:
        """A context in which the yielded function receives loading progress."""
        ...

    def pulling(self, source: str) -> AbstractContextManager[PullProgress]:
        """A context in which the yielded function receives the progress of downloading `source`."""
        ...

    def approve(self, header: Header, nbytes: int) -> None:
        """Approve a model of `nbytes` before it is downloaded, or raise DoesNotFit."""
        ...

    def waiting(self, source: str, pid: int | None, done_bytes: int, total_bytes: int | None) -> None:
        """Report that another process is pulling `source`, how far it is, and that opening waits for it."""
        ...

    def found(self, path: Path, settings: Settings) -> None:
        """The model is on this machine and is loaded next; raises to prevent that."""
        ...

    def note(self, text: str) -> None:
        """Show a line that the user should know of."""
        ...

    def agree(self, download: Download) -> None:
        """Announce a download that the user did not ask for, before it begins. Raises ModelNotFound if refused."""
        ...

    def first_model(self) -> str | None:
        """The name or source of the model to begin with, while none was used; None: the starter model.

        Raises ModelNotFound if the user wants none.
        """
        ...

    def chosen(self, name: str, nbytes: int) -> None:
        """Show which model is about to be loaded."""
        ...


class OpeningCalledOff(BaseException):
    """Opening was cancelled. Not an Exception, so that no error handler catches it and continues."""


class WatchedFace:
    """Passes everything on to functions, which are called in the opening thread.

    loaded(what, done, total)
    pulled(source, done_bytes, total_bytes, bytes_per_s)
    approve    may ask the user and wait; raises DoesNotFit for a no
    noted(text)
    agree      may ask too; raises ModelNotFound for a no (None: do not ask)
    first      which model to begin with; may ask and wait; raises ModelNotFound for none (None: the starter model)
    chosen(name, nbytes)  the model that is about to be loaded
    is_beside  another model stays open meanwhile; one without room beside it is refused before it is loaded

    After `call_off` the next report raises OpeningCalledOff.
    """

    def __init__(
        self,
        loaded: Progress,
        pulled: Callable[[str, int, int | None, float], None],
        approve: Approve,
        noted: Callable[[str], object] | None = None,
        *,
        agree: Callable[[Download], None] | None = None,
        first: Callable[[], str] | None = None,
        chosen: Callable[[str, int], None] | None = None,
        is_beside: bool = False,
    ) -> None:
        self._loaded, self._pulled, self._approve, self._noted = loaded, pulled, approve, noted
        self._agree, self._first, self._chosen, self.is_beside = agree, first, chosen, is_beside
        self._called_off = threading.Event()

    def call_off(self) -> None:
        """Cancel opening at its next report, from any thread. Downloaded data stays; a later pull resumes from it."""
        self._called_off.set()

    def check(self) -> None:
        """Raise OpeningCalledOff after `call_off`."""
        if self._called_off.is_set():
            raise OpeningCalledOff

    def loading(self) -> AbstractContextManager[Progress]:
        """Pass on loading progress."""

        def report(what: str, done: int, total: int) -> None:
            self.check()
            self._loaded(what, done, total)

        return nullcontext(report)

    def pulling(self, source: str) -> AbstractContextManager[PullProgress]:
        """Pass on download progress."""

        def report(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
            self.check()
            self._pulled(source, done_bytes, total_bytes, bytes_per_s)

        return nullcontext(report)

    def approve(self, header: Header, nbytes: int) -> None:
        """Ask for the decision about a model that is to be downloaded."""
        self.check()
        self._approve(header, nbytes)
        self.check()

    def waiting(self, source: str, pid: int | None, done_bytes: int, total_bytes: int | None) -> None:
        """Report waiting as loading progress, in words."""
        from edgeinfer.app.progress import how_far, waiting_text

        self.check()
        self._loaded(f"{waiting_text(pid, source)}{how_far(done_bytes, total_bytes)}", 0, 0)

    def found(self, path: Path, settings: Settings) -> None:
        """Check that there is room for the model if another one is open. Raises DoesNotFit and BadGGUF."""
        self.check()
        if self.is_beside:
            from edgeinfer.app.plans.fit import require_room_beside

            require_room_beside(path, settings)

    def note(self, text: str) -> None:
        """Pass on a line."""
        if self._noted is not None:
            self._noted(text)

    def agree(self, download: Download) -> None:
        """Ask for the decision about a download that the user did not ask for."""
        self.check()
        if self._agree is not None:
            self._agree(download)
        self.check()

    def first_model(self) -> str | None:
        """Ask which model to begin with."""
        self.check()
        found = None if self._first is None else self._first()
        self.check()
        return found

    def chosen(self, name: str, nbytes: int) -> None:
        """Pass on that the model is here and about to be loaded."""
        self.check()
        if self._chosen is not None:
            self._chosen(name, nbytes)
