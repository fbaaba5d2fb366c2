"""Makes a model's text safe for a terminal: it cannot move the cursor, change colours or reorder characters.

In: text, whole or in pieces. Out: text of printable characters, tabs and newlines. Removed control characters leave a
visible symbol, so that nothing is hidden. The result does not depend on how the text is cut into pieces.
"""

from __future__ import annotations

REPLACEMENT = "\ufffd"
CONTROL_PICTURES = 0x2400
DELETE_PICTURE = "\u2421"
KEPT = "\n\t"
ORDER_MARKS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
"""Characters that change the direction of text, and can make a line look like a different one."""
INVISIBLE = (0x200B, 0x2060, 0xFEFF, 0x00AD, *range(0x2061, 0x2065), *range(0xE0000, 0xE0080), *range(0xFFF9, 0xFFFC))
LINE_ENDS = (0x2028, 0x2029, 0x0085)


def _table() -> dict[int, str]:
    table = {code: chr(CONTROL_PICTURES + code) for code in range(32) if chr(code) not in KEPT}
    table[0x7F] = DELETE_PICTURE
    table.update(dict.fromkeys((*range(0x80, 0xA0), *ORDER_MARKS, *range(0xD800, 0xE000)), REPLACEMENT))
    table.update(dict.fromkeys(INVISIBLE, ""))
    table.update(dict.fromkeys(LINE_ENDS, "\n"))
    return table


_TABLE = _table()


def neutral(text: str) -> str:
    """Neutralise a complete text. Line endings of any kind become \\n."""
    return _translated(text.replace("\r\n", "\n").replace("\r", "\n"))


class NeutralStream:
    """Neutralises a text that arrives in pieces."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, piece: str) -> str:
        """Add a piece. Returns all text that is final: a \\r at the end is held back, as a \\n may follow."""
        piece = self._held + piece
        self._held = "\r" if piece.endswith("\r") else ""
        return neutral(piece[: len(piece) - len(self._held)])

    def finish(self) -> str:
        """Returns the text held back."""
        held, self._held = self._held, ""
        return neutral(held)


def _translated(text: str) -> str:
    return text if text.isascii() and text.isprintable() else text.translate(_TABLE)
