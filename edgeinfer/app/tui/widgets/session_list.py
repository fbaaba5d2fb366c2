"""The list of saved chats or search results.

In: rows. Out: the row under the cursor, and `OptionList`'s message when it is chosen. Does not read or change chats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from textual import events
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from edgeinfer.app.tui.widgets.session_rows import ChatRow, content_of


class SessionList(OptionList):
    """Rows of chats; the cursor stays on its row when others are added or removed."""

    DEFAULT_CSS = """
    SessionList { height: 1fr; background: transparent; scrollbar-size-vertical: 1; padding: 0 1 !important; }
    SessionList:focus { background-tint: transparent; }
    SessionList > .option-list--option-highlighted {
        color: $block-cursor-foreground; background: $block-cursor-background; text-style: $block-cursor-text-style;
    }
    """

    def __init__(self, current: int | None, clock: Callable[[], float] = time.time, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False, compact=True)
        self._open_session = current
        self._clock = clock
        self._rows: tuple[ChatRow, ...] = ()
        self._shown_width = 0

    @property
    def rows(self) -> tuple[ChatRow, ...]:
        """The displayed rows, from the top."""
        return self._rows

    @property
    def chosen(self) -> ChatRow | None:
        """The row under the cursor."""
        return None if self.highlighted is None else self._rows[self.highlighted]

    def show(self, rows: Sequence[ChatRow], *, to_top: bool = False) -> None:
        """Show these rows; the cursor moves to the first one, or stays on its row."""
        before, place = self.chosen, self.highlighted or 0
        self._rows = tuple(rows)
        self._rebuild()
        keys = [row.key for row in self._rows]
        if to_top or before is None:
            place = 0
        elif before.key in keys:
            place = keys.index(before.key)
        self.highlighted = min(place, len(keys) - 1) if keys else None

    def select_session(self, number: int) -> None:
        """Move the cursor to the first row of a chat."""
        for place, row in enumerate(self._rows):
            if row.session == number:
                self.highlighted = place
                return

    def on_resize(self, event: events.Resize) -> None:
        """Lay the columns out for the new width."""
        if self._width() != self._shown_width:
            place = self.highlighted
            self._rebuild()
            self.highlighted = place

    def _rebuild(self) -> None:
        self._shown_width = self._width()
        self.set_options(Option(self._content(row), id=row.key) for row in self._rows)

    def _content(self, row: ChatRow) -> Content:
        is_open = row.session == self._open_session
        return content_of(row, max(10, self._shown_width), self._clock(), is_open=is_open)

    def _width(self) -> int:
        """Width of a row, leaving room for the scroll bar so that nothing moves when it appears."""
        return self.container_size.width - 3
