"""A model's text made harmless for a terminal: nothing in it can steer the cursor, colours, or the order of letters.

In: text, whole or in pieces. Out: text of printable characters, tabs and line ends. What is taken out leaves a visible
sign, so that nothing is hidden. Any way of cutting the text into pieces gives the same.
"""

from __future__ import annotations

REPLACEMENT = "\ufffd"
CONTROL_PICTURES = 0x2400
DELETE_PICTURE = "\u2421"
KEPT = "\n\t"
ORDER_MARKS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
"""Characters that change the direction of text: with them a line can be shown as another one."""
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
    """The whole of a text. Line ends of any kind become \\n."""
    return _translated(text.replace("\r\n", "\n").replace("\r", "\n"))


class NeutralStream:
    """The same for a text that comes in pieces."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, piece: str) -> str:
        """What is certain with this piece: a \\r at its end may belong to a \\n that comes."""
        piece = self._held + piece
        self._held = "\r" if piece.endswith("\r") else ""
        return neutral(piece[: len(piece) - len(self._held)])

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return neutral(held)


def _translated(text: str) -> str:
    return text if text.isascii() and text.isprintable() else text.translate(_TABLE)
