"""Text that is written side by side, read in order: a part is let through once all before it are complete.

In: the texts of parts as they grow. Out: text, part after part. Knows no models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class ReadingOrder:
    """Joins parts: `read` returns what may be read since the last call."""

    def __init__(
        self, heads: Sequence[str], between: str, text_of: Callable[[int], str], is_over: Callable[[int], bool]
    ) -> None:
        """`heads`: the beginning of each part, before its text; `between`: stands between parts.

        `text_of`: the text of a part so far, which only grows; `is_over`: whether it is complete.
        """
        self._heads, self._between, self._text_of, self._is_over = heads, between, text_of, is_over
        self._at = 0
        self._n_read = -1  # characters of the text of this part; -1: its head was not read either

    def read(self) -> str:
        """What may be read since the last call, without white space at the end of parts."""
        found = ""
        while self._at < len(self._heads):
            if self._n_read < 0:
                found += (self._between if self._at else "") + self._heads[self._at]
                self._n_read = 0
            is_over = self._is_over(self._at)  # before the text, which may grow meanwhile
            text = self._text_of(self._at).rstrip()  # white space comes with what follows it
            found += text[self._n_read :]
            self._n_read = max(self._n_read, len(text))
            if not is_over:
                break
            self._at, self._n_read = self._at + 1, -1
        return found
