"""Passes the text of an answer from the engine thread to the UI.

In: pieces with the number of their job, from the engine thread. Out: everything since the last `take`, when the UI is
ready to draw. The UI is notified once per `take`, so no queue builds up, however fast the text and slow the terminal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class TextBuffer:
    """Holds the pieces not taken yet. `notify` is called from the adding thread, once until they are taken."""

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._pieces: list[tuple[int, str]] = []
        self._is_notified = False

    def add(self, job: int, piece: str) -> None:
        """Add text of an answer."""
        if not piece:
            return
        with self._lock:
            self._pieces.append((job, piece))
            was_notified, self._is_notified = self._is_notified, True
        if not was_notified:
            self._notify()

    def take(self, job: int | None) -> str:
        """Returns the new text of an answer; pieces of other jobs, which have been abandoned, are dropped."""
        with self._lock:
            self._is_notified = False
            pieces, self._pieces = self._pieces, []
        return "".join(piece for of, piece in pieces if of == job)
