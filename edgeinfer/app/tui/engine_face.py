"""The face of opening a model in the app: posts its progress, and waits in the engine thread for the user's decisions.

In: reports of opening and pulling. Out: messages to the app; the answers that come back through them. Touches no
widget. A cancelled opening ends a question that waits.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from textual.message import Message

from edgeinfer.app.opening.face import Download, WatchedFace
from edgeinfer.app.tui.engine_messages import DownloadAsked, FirstModelAsked, ModelChosen, ModelOpening, Notified
from edgeinfer.errors import ModelNotFound

T = TypeVar("T")
LOOK_S = 0.1
"""Interval for checking whether an opening that waits for the user's answer was cancelled."""


class AppFace(WatchedFace):
    """A face whose functions post messages with `post`."""

    def __init__(self, post: Callable[[Message], object], *, is_beside: bool) -> None:
        from edgeinfer.app.plans.fit import approve_quietly

        super().__init__(
            self._tell_loading,
            self._tell_pulling,
            approve_quietly,
            lambda text: post(Notified(text)),
            agree=self._ask,
            first=self._ask_first,
            chosen=self._tell_chosen,
            is_beside=is_beside,
        )
        self._post = post

    def _tell_loading(self, what: str, done: int, total: int) -> None:
        self._post(ModelOpening(what, done, total))

    def _tell_chosen(self, name: str, nbytes: int) -> None:
        self._post(ModelChosen(name, nbytes))

    def _tell_pulling(self, source: str, done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        done = done_bytes, total_bytes or 0
        self._post(ModelOpening(f"fetching {source}", *done, unit="bytes", rate=bytes_per_s))

    def _ask(self, download: Download) -> None:
        """Ask whether to download a model that the user did not name, and wait. Raises ModelNotFound if refused."""
        answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._post(DownloadAsked(str(download), answers.put))
        if not self._answer_of(answers):
            raise ModelNotFound(download.refused)

    def _ask_first(self) -> str:
        """Ask which model to begin with, and wait. Raises ModelNotFound if none was chosen."""
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._post(FirstModelAsked(answers.put))
        if not (name := self._answer_of(answers)):
            raise ModelNotFound("none was chosen")
        return name

    def _answer_of(self, answers: queue.SimpleQueue[T]) -> T:
        """Wait for the user's answer. Raises OpeningCalledOff."""
        while True:
            self.check()
            with suppress(queue.Empty):
                return answers.get(timeout=LOOK_S)
