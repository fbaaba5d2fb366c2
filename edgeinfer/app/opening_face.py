"""What opening a model is shown on and asks: the seam between opening and whoever looks at it.

In: how far loading and pulling are, a question about a model that may not fit. Out: calls of functions; nothing is
printed. A `WatchedFace` can be called off from any thread: opening then ends at its next report. Opens nothing itself.
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
    """A model that is about to be fetched though nobody named it; `nbytes` is None where the server tells no size.

    `n_here`: other models on this computer, none of which was used yet.
    """

    name: str
    source: str
    nbytes: int | None
    n_here: int = 0

    def __str__(self) -> str:
        from edgeinfer.models.download.space import size_text

        size = "of unknown size" if self.nbytes is None else size_text(self.nbytes)
        fetching = f"fetching the starter model {self.name} from {self.source}, {size}."
        if not self.n_here:
            return f"There is no model yet: {fetching}"
        return f"No model was used yet: {fetching} Or -m NAME takes one that edgeinfer ls lists."

    @property
    def refused(self) -> str:
        """What works where it is not fetched."""
        others = "and there is no other model" if not self.n_here else "and no model was used before"
        named = "" if not self.n_here else "name one that edgeinfer ls lists with -m NAME, "
        return (
            f"{self.name} was not fetched, {others}; {named}give a GGUF file with -m PATH, or fetch "
            "another model: edgeinfer pull hf:USER/REPO:QUANT"
        )


class OpeningFace(Protocol):
    """Shows that a model is pulled and loaded, and decides about one that may not fit or that nobody named."""

    def loading(self) -> AbstractContextManager[Progress]:
        """What is told how far loading is, while it lasts."""
        ...

    def pulling(self, source: str) -> AbstractContextManager[PullProgress]:
        """What is told how far the download of `source` is, while it lasts."""
        ...

    def approve(self, header: Header, nbytes: int) -> None:
        """Let a model of so many bytes through before it is fetched, or raise DoesNotFit."""
        ...

    def waiting(self, source: str, pid: int | None, done_bytes: int, total_bytes: int | None) -> None:
        """Another process pulls `source` and has so much of it; that is waited for."""
        ...

    def found(self, path: Path, settings: Settings) -> None:
        """The model is on this machine and is loaded next; raises to prevent that."""
        ...

    def note(self, text: str) -> None:
        """Show a line that the user should know of."""
        ...

    def agree(self, download: Download) -> None:
        """Announce a download that nobody asked for, before it begins; raise ModelNotFound where it is refused."""
        ...

    def chosen(self, name: str, nbytes: int) -> None:
        """Show which model is about to be loaded."""
        ...


class OpeningCalledOff(BaseException):
    """Opening was called off. No error: nothing that copes with errors may take it for one and go on."""


class WatchedFace:
    """Hands everything to functions, which are called in the thread that opens.

    `loaded(what, done, total)`; `pulled(source, done_bytes, total_bytes, bytes_per_s)`; `approve` may ask someone and
    wait, and raises DoesNotFit for a no; `noted(text)`; `agree` may ask too, with ModelNotFound for a no (None: nobody
    is asked); `chosen(name, nbytes)` of the model that is about to be loaded. After `call_off` the next report raises
    OpeningCalledOff. `is_beside`: another model stays open meanwhile; one that has no room beside it is refused before
    it is loaded.
    """

    def __init__(
        self,
        loaded: Progress,
        pulled: Callable[[str, int, int | None, float], None],
        approve: Approve,
        noted: Callable[[str], object] | None = None,
        *,
        agree: Callable[[Download], None] | None = None,
        chosen: Callable[[str, int], None] | None = None,
        is_beside: bool = False,
    ) -> None:
        self._loaded, self._pulled, self._approve, self._noted = loaded, pulled, approve, noted
        self._agree, self._chosen, self.is_beside = agree, chosen, is_beside
        self._called_off = threading.Event()

    def call_off(self) -> None:
        """End opening at its next report; from any thread. What was downloaded stays, and is gone on from."""
        self._called_off.set()

    def check(self) -> None:
        """Raises OpeningCalledOff after `call_off`."""
        if self._called_off.is_set():
            raise OpeningCalledOff

    def loading(self) -> AbstractContextManager[Progress]:
        """Reports of loading."""

        def report(what: str, done: int, total: int) -> None:
            self.check()
            self._loaded(what, done, total)

        return nullcontext(report)

    def pulling(self, source: str) -> AbstractContextManager[PullProgress]:
        """Reports of a download."""

        def report(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
            self.check()
            self._pulled(source, done_bytes, total_bytes, bytes_per_s)

        return nullcontext(report)

    def approve(self, header: Header, nbytes: int) -> None:
        """The decision about a model that is to be fetched."""
        self.check()
        self._approve(header, nbytes)
        self.check()

    def waiting(self, source: str, pid: int | None, done_bytes: int, total_bytes: int | None) -> None:
        """A report of loading, in words."""
        from edgeinfer.app.pull_progress import how_far, waiting_text

        self.check()
        self._loaded(f"{waiting_text(pid, source)}{how_far(done_bytes, total_bytes)}", 0, 0)

    def found(self, path: Path, settings: Settings) -> None:
        """Whether there is room for the model. Raises DoesNotFit and BadGGUF, only where another one is open."""
        self.check()
        if self.is_beside:
            from edgeinfer.app.fit import require_room_beside

            require_room_beside(path, settings)

    def note(self, text: str) -> None:
        """A line."""
        if self._noted is not None:
            self._noted(text)

    def agree(self, download: Download) -> None:
        """The decision about a download that nobody asked for."""
        self.check()
        if self._agree is not None:
            self._agree(download)
        self.check()

    def chosen(self, name: str, nbytes: int) -> None:
        """The model is here, and about to be loaded."""
        self.check()
        if self._chosen is not None:
            self._chosen(name, nbytes)
