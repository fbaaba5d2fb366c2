"""The text of an answer on its way from the engine's thread to the screen.

In: pieces and the order they belong to, from the engine's thread. Out: everything since the last look, for the screen
when it is ready to draw. The screen is notified once per look, so that however fast text comes, and however slow the
terminal is, no queue grows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class TextBuffer:
    """Pieces not taken yet. `notify` is called from the adding thread, once until they are taken."""

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._pieces: list[tuple[int, str]] = []
        self._is_notified = False

    def add(self, job: int, piece: str) -> None:
        """More text of an answer."""
        if not piece:
            return
        with self._lock:
            self._pieces.append((job, piece))
            was_notified, self._is_notified = self._is_notified, True
        if not was_notified:
            self._notify()

    def take(self, job: int | None) -> str:
        """The text of an answer since the last time; that of others, which were left, is dropped."""
        with self._lock:
            self._is_notified = False
            pieces, self._pieces = self._pieces, []
        return "".join(piece for of, piece in pieces if of == job)
