"""The text of an answer on its way from the engine's thread to the screen.

In: pieces and the order they belong to, from the engine's thread. Out: everything since the last look, for the screen
when it is ready to draw. The screen is told once per look, so that however fast text comes, and however slow the
terminal is, no queue grows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Growth:
    """Pieces that were not taken yet. `tell` is called from the adding thread when there is something to take."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._pieces: list[tuple[int, str]] = []
        self._is_told = False

    def add(self, job: int, piece: str) -> None:
        """More text of an answer."""
        if not piece:
            return
        with self._lock:
            self._pieces.append((job, piece))
            told, self._is_told = self._is_told, True
        if not told:
            self._tell()

    def take(self, job: int | None) -> str:
        """What came of an answer since the last time; of others, which were left, it is dropped. The next is told."""
        with self._lock:
            self._is_told = False
            pieces, self._pieces = self._pieces, []
        return "".join(piece for of, piece in pieces if of == job)
