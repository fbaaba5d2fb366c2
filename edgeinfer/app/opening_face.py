"""What opening a model is shown on and asks: the seam between opening and whoever looks at it.

In: how far loading and pulling are, a question about a model that may not fit. Out: calls of functions; nothing is
printed. A `WatchedFace` can be called off from any thread: opening then ends at its next report. Opens nothing itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from edgeinfer.backends.base import Progress
    from edgeinfer.models.download.header import Approve
    from edgeinfer.models.download.policy import Progress as PullProgress
    from edgeinfer.models.gguf import Header


class OpeningFace(Protocol):
    """Shows that a model is pulled and loaded, and decides about one that may not fit."""

    def loading(self) -> AbstractContextManager[Progress]:
        """What is told how far loading is, while it lasts."""
        ...

    def pulling(self, source: str) -> AbstractContextManager[PullProgress]:
        """What is told how far the download of `source` is, while it lasts."""
        ...

    def approve(self, header: Header, nbytes: int) -> None:
        """Let a model of so many bytes through before it is fetched, or raise DoesNotFit."""
        ...


class OpeningCalledOff(BaseException):
    """Opening was called off. No error: nothing that copes with errors may take it for one and go on."""


class WatchedFace:
    """Hands everything to functions, which are called in the thread that opens.

    `loaded(what, done, total)`; `pulled(source, done_bytes, total_bytes, bytes_per_s)`; `approve` may ask someone and
    wait, and raises DoesNotFit for a no. After `call_off` the next report raises OpeningCalledOff.
    """

    def __init__(
        self, loaded: Progress, pulled: Callable[[str, int, int | None, float], None], approve: Approve
    ) -> None:
        self._loaded, self._pulled, self._approve = loaded, pulled, approve
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
