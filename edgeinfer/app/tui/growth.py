"""The text of an answer on its way from the engine's thread to the screen.

In: pieces, from the engine's thread. Out: everything since the last look, for the screen when it is ready to draw.
The screen is told once per look, so that however fast text comes, and however slow the terminal is, no queue grows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Growth:
    """Pieces that were not taken yet. `tell` is called from the adding thread when there is something to take."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._pieces: list[str] = []
        self._is_told = False

    def add(self, piece: str) -> None:
        """More text."""
        if not piece:
            return
        with self._lock:
            self._pieces.append(piece)
            told, self._is_told = self._is_told, True
        if not told:
            self._tell()

    def take(self) -> str:
        """What came since the last time; the next piece is told again."""
        with self._lock:
            self._is_told = False
            text = "".join(self._pieces)
            self._pieces.clear()
        return text
