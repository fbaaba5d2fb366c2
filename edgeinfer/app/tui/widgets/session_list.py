"""The list of saved chats or search results: one line for a chat, two for a message found by a search.

In: saved sessions, hits, a width, the time. Out: the row under the cursor, and `OptionList`'s message when it is
chosen. Does not read or change chats.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from edgeinfer.app.sessions.records import MARK_BEGIN, MARK_END, Hit, KeptSession
from edgeinfer.app.tui.text.neutral import neutral

UNTITLED = "untitled"
MATCH = "bold underline"
MUTED = "dim"
AGE_WIDTH, COUNT_WIDTH, MODEL_WIDTH = 8, 5, 20
MIDDLE, WIDE = 60, 90
"""Minimum widths in cells to show the message count and the model."""
MINUTE_S, HOUR_S, DAY_S, WEEK_S = 60, 3600, 86_400, 604_800

_MATCH = re.compile(f"{MARK_BEGIN}([^{MARK_BEGIN}{MARK_END}]*){MARK_END}")
"""Not a lone mark: a message may contain one."""


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A chat, or one of its messages if `message` is set. `snippet`: the matching text, with matches between marks."""

    session: int
    title: str
    changed_s: float
    message: int | None = None
    snippet: str = ""
    who: str = ""
    n_messages: int = 0
    model: str = ""

    @property
    def key(self) -> str:
        """A key that identifies the row."""
        return f"{self.session}-{self.message or ''}"


def rows_of_sessions(sessions: Iterable[KeptSession]) -> tuple[ChatRow, ...]:
    """A row for each session."""
    return tuple(
        ChatRow(each.number, each.title, each.changed_s, n_messages=each.n_messages, model=each.model or "")
        for each in sessions
    )


def rows_of_hits(hits: Sequence[Hit]) -> tuple[ChatRow, ...]:
    """A row for each message found, and for each title found if nothing else in its chat was."""
    with_messages = {hit.session for hit in hits if hit.message > 0}
    who = {"user": "you", "assistant": "answer", "summary": "summary"}
    return tuple(
        ChatRow(hit.session, hit.title, hit.changed_s, hit.message, hit.snippet, who[hit.role])
        if hit.message > 0
        else ChatRow(hit.session, hit.snippet, hit.changed_s)
        for hit in hits
        if hit.message > 0 or hit.session not in with_messages
    )


def content_of(row: ChatRow, width: int, now_s: float, *, is_open: bool) -> Content:
    """The content of a row. A dot marks the open chat."""
    columns = []
    if width >= WIDE:
        columns.append(fitted(one_line(row.model), MODEL_WIDTH))
    if width >= MIDDLE and row.message is None:
        columns.append(f"{row.n_messages or '':>{COUNT_WIDTH}}")
    columns.append(f"{age_word(row.changed_s, now_s):>{AGE_WIDTH}}")
    right = " " + " ".join(columns)
    title = marked(row.title if row.title.strip() else UNTITLED)
    left = Content("• " if is_open else "  ") + title.truncate(max(1, width - cell_len(right) - 2), ellipsis=True)
    line = left.pad_right(max(0, width - cell_len(right) - left.cell_length)) + Content.styled(right, MUTED)
    if row.message is None:
        return line
    who = Content.styled(f"    {row.who}: ", MUTED)
    return line + Content("\n") + who + around_match(row.snippet, width - who.cell_length)


def marked(text: str) -> Content:
    """A text as one line, with the parts between marks highlighted."""
    parts = _MATCH.split(text)
    return Content.assemble(*((one_line(part), MATCH if place % 2 else "") for place, part in enumerate(parts)))


def around_match(snippet: str, width: int) -> Content:
    """As much of a snippet as fits, with its first match visible."""
    first = _MATCH.split(snippet)[0]
    before, rest = one_line(first), snippet[len(first) :]
    room = max(0, width // 3)
    if cell_len(before) > room and marked(snippet).cell_length > width:
        while before and cell_len(before) > room - 1:
            before = before[1:]
        before = "…" + before
    return (Content(before) + marked(rest)).truncate(max(1, width), ellipsis=True)


def one_line(text: str) -> str:
    """A text without newlines and control characters. Whitespace at its ends stays: it may be part of a longer text."""
    return re.sub(r"\s+", " ", neutral(text))


def fitted(text: str, width: int) -> str:
    """Pad or truncate a text to exactly `width` cells."""
    return set_cell_size(text, width - 1) + "…" if cell_len(text) > width else set_cell_size(text, width)


def age_word(then_s: float, now_s: float) -> str:
    """A message's age, or its date, in at most eight characters."""
    age_s = now_s - then_s
    if age_s < MINUTE_S:
        return "now"
    if age_s < HOUR_S:
        return f"{int(age_s / MINUTE_S)} min"
    if age_s < DAY_S:
        return f"{int(age_s / HOUR_S)} h"
    if age_s < WEEK_S:
        return f"{int(age_s / DAY_S)} d"
    then = time.localtime(then_s)
    is_this_year = then.tm_year == time.localtime(now_s).tm_year
    return f"{then.tm_mday} {time.strftime('%b', then)}" if is_this_year else time.strftime("%b %Y", then)


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
