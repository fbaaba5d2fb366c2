"""A question in the transcript: the text as typed, and its attachments.

In: text, attachments. Out: lines; a long question is folded until it is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.strip import Strip

from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.text.drawing import Drawer
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.entry import ChatEntry, estimated_lines
from edgeinfer.text_values import size_text

FOLDED_LINES, SHOWN_LINES = 24, 16


class QuestionEntry(ChatEntry):
    """The transcript entry of a question."""

    def __init__(self, number: int, text: str, attachments: Sequence[Attachment] = ()) -> None:
        super().__init__(number)
        self.source = text
        self._attachments = tuple(attachments)
        self._is_open = False
        self._is_long = False

    @property
    def is_question(self) -> bool:
        return True

    @property
    def is_folded(self) -> bool:
        return self._is_long and not self._is_open

    def fold(self, *, is_folded: bool) -> None:
        if self._is_open == is_folded:
            self._is_open = not is_folded
            self.alter()

    def estimate(self, width: int) -> int:
        return min(FOLDED_LINES, estimated_lines(self.source, width)) + 1 + len(self._attachments)

    def draw(self, drawer: Drawer) -> list[Strip]:
        lines = self.sibling_lines(drawer)
        for attachment in self._attachments:
            said = f"attached: {neutral(attachment.name)}, {size_text(attachment.n_bytes)}"
            lines += drawer.plain(said, drawer.palette.muted)
        text = drawer.plain(neutral(self.source).rstrip("\n")) if self.source.strip() else []
        self._is_long = len(text) > FOLDED_LINES
        self.fold_lines = ()
        if self.is_folded:
            more = f"… {len(text) - SHOWN_LINES} more lines (Alt+T opens)"
            self.fold_lines = (len(lines) + SHOWN_LINES,)
            text = [*text[:SHOWN_LINES], *drawer.plain(more, drawer.palette.muted)]
        return [*lines, *text]
