"""The tokens that a session has seen, text after text, in memory that compiled code can read.

In: tokens. Out: int32 in memory that moves only when it must grow. Does not interpret the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgeinfer.engine.speculation.records import NO_TOKEN
from edgeinfer.graph.step import Int32s

FIRST_CAPACITY = 4096
MOST_TOKENS = 1 << 18
"""A log that would grow longer than this with a new text starts anew."""


class TokenLog:
    """Texts in the order in which they were seen; the last one grows.

    `moved` is called with the log when its memory moves.
    """

    def __init__(self, moved: Callable[[TokenLog], None]) -> None:
        self._moved = moved
        self.tokens: Int32s = np.empty(FIRST_CAPACITY, np.int32)
        self.n_tokens = 0
        self._text: list[int] = []
        moved(self)

    @property
    def address(self) -> int:
        return int(self.tokens.ctypes.data)

    @property
    def capacity(self) -> int:
        return len(self.tokens)

    def begin(self, text: Sequence[int]) -> None:
        """Continue the last text if `text` continues it, else begin a new one."""
        known = len(self._text)
        if self._text != list(text[:known]):
            if self.n_tokens + len(text) + 1 > MOST_TOKENS:
                self.n_tokens = 0
                self._moved(self)
            elif self.n_tokens:
                self._append([NO_TOKEN])
            self._text = []
        self.follow(text)

    def follow(self, text: Sequence[int]) -> None:
        """Append what the last text has gained."""
        new = text[len(self._text) :]
        if new:
            self._append(new)
            self._text.extend(new)

    def _append(self, tokens: Sequence[int]) -> None:
        stop = self.n_tokens + len(tokens)
        if stop > self.capacity:
            grown = np.empty(max(2 * self.capacity, stop), np.int32)
            grown[: self.n_tokens] = self.tokens[: self.n_tokens]
            self.tokens = grown
            self._moved(self)
        self.tokens[self.n_tokens : stop] = tokens
        self.n_tokens = stop
