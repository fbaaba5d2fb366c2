"""Which model to begin with: shown while none was used yet, before anything is fetched.

In: a catalogue. Out: the name or source of the chosen model, MORE for the models screen, "" for none. The starter model
is there at once; what suits this computer is found in a thread. What is typed meanwhile is kept for the chat, with a
line end where Enter ends it; the next Enter chooses, after a pause without keys.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from edgeinfer.app.catalogue.catalogue import Catalogue
from edgeinfer.app.catalogue.first_models import FirstModel, first_models, starter_row
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.text_fields import plain
from edgeinfer.errors import EdgeInferError

MORE = "\0more"
PAUSE_S = 0.6
"""Seconds without a key after which Enter counts."""
TITLE = "Which model first? Nothing is fetched before you choose."
LOOKING = "Looking which models suit this computer …"
KEYS = "Enter takes it · Ctrl+L all models, other sources · Escape none for now"
KEPT = "Kept for the chat: "
KEPT_CHARACTERS = 60
HEADINGS = ("model", "size", "fits", "tok/s", "")
MEANING = "tok/s: tokens a second as predicted for this computer; people read 5 to 10."
NARROW = 66
"""A screen with fewer cells leaves out whether a model fits and what it is good at."""


class FirstModelScreen(ModalScreen[str]):
    """A list of models at the bottom of the screen."""

    DEFAULT_CSS = """
    FirstModelScreen { align: center bottom; background: transparent; }
    FirstModelScreen > Vertical {
        width: 100%; height: auto; max-height: 100%; background: $surface; border-top: solid $primary;
    }
    FirstModelScreen Static { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    FirstModelScreen #first-title { text-style: bold; }
    FirstModelScreen #first-heading, FirstModelScreen #first-note { color: $text-muted; }
    FirstModelScreen OptionList {
        height: auto; max-height: 14; padding: 0; background: $surface;
        &, &:focus { border: none; }
        & > .option-list--option, & > .option-list--option-highlighted { padding: 0 1; }
    }
    """
    AUTO_FOCUS = "OptionList"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "none for now", id="first.none"),
        Binding("ctrl+l", "more", "all models", id="first.more"),
    ]

    class Found(Message):
        """The models to choose from, or why they could not be found."""

        def __init__(self, rows: tuple[FirstModel, ...], reason: str = "") -> None:
            super().__init__()
            self.rows = rows
            self.reason = reason

    def __init__(self, catalogue: Catalogue) -> None:
        super().__init__()
        self._catalogue = catalogue
        self._rows: tuple[FirstModel, ...] = (starter_row(),)
        self._has_moved = self._is_typing = False
        self.typed = ""
        self._quiet_since_s = time.monotonic()

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(TITLE, id="first-title", markup=False)
            yield Static(id="first-heading", markup=False)
            yield OptionList()
            yield Static(LOOKING, id="first-note", markup=False)
            yield Static(KEYS, id="first-keys", markup=False)

    def on_mount(self) -> None:
        """Show the starter model, and look for others."""
        self._list()
        self.look()

    def on_resize(self, event: events.Resize) -> None:
        """Redraw for the new width."""
        self._list()

    @work(thread=True, group="first-models")
    def look(self) -> None:
        """Find the models that suit this computer."""
        try:
            self.post_message(self.Found(first_models(self._catalogue)))
        except (EdgeInferError, OSError) as error:
            self.post_message(self.Found((), str(error)))

    def on_first_model_screen_found(self, event: Found) -> None:
        """List them. The cursor goes to the first one that is here already, unless it was moved."""
        at_cursor = self._at_cursor()
        self._rows = event.rows or self._rows
        name = at_cursor.name if self._has_moved and at_cursor is not None else self._rows[0].name
        self._list(name)
        self.query_one("#first-note", Static).update(event.reason or MEANING)

    def on_key(self, event: events.Key) -> None:
        """Keep what is typed, and let Enter through only after a pause."""
        now = time.monotonic()
        was_quiet, self._quiet_since_s = now - self._quiet_since_s >= PAUSE_S, now
        if event.key in ("up", "down", "home", "end", "pageup", "pagedown"):
            self._has_moved, self._quiet_since_s, self._is_typing = True, 0.0, False  # it means the list
        elif event.key == "enter" and self._is_typing:
            self._keep(event, self.typed + "\n", is_typing=False)
        elif event.key == "enter" and not was_quiet:
            self._keep(event, self.typed, is_typing=False)
        elif event.key == "backspace":
            self._keep(event, self.typed[:-1], is_typing=self.typed[-2:-1] not in ("", "\n"))
        elif event.is_printable and event.character is not None:
            self._keep(event, self.typed + event.character, is_typing=True)

    def on_paste(self, event: events.Paste) -> None:
        """Keep a paste too."""
        self._keep(event, self.typed + plain(event.text), is_typing=True)

    def _keep(self, event: events.Event, typed: str, *, is_typing: bool) -> None:
        """Keep this text for the chat, and show its end."""
        event.stop()
        event.prevent_default()
        self.typed, self._is_typing = typed, is_typing
        shown = neutral(typed.replace("\n", " ⏎ "))
        self.query_one("#first-keys", Static).update(f"{KEPT}{shown[-KEPT_CHARACTERS:]}" if shown else KEYS)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A model was chosen."""
        self.dismiss(self._rows[event.option_index].name)

    def action_leave(self) -> None:
        """Choose none."""
        self.dismiss("")

    def action_more(self) -> None:
        """Go on to the models screen."""
        self.dismiss(MORE)

    def _at_cursor(self) -> FirstModel | None:
        place = self.query_one(OptionList).highlighted
        return None if place is None or place >= len(self._rows) else self._rows[place]

    def _list(self, name: str | None = None) -> None:
        at_cursor = self._at_cursor()
        wanted = name or (at_cursor.name if at_cursor is not None else "")
        lines = table_lines([HEADINGS, *map(_cells, self._rows)], self.size.width or self.app.size.width)
        found = self.query_one(OptionList)
        found.clear_options()
        found.add_options([Option(line) for line in lines[1:]])
        found.highlighted = next((place for place, row in enumerate(self._rows) if row.name == wanted), 0)
        self.query_one("#first-heading", Static).update(lines[0])


def _cells(row: FirstModel) -> tuple[str, ...]:
    return neutral(row.label), row.size, row.fit, row.tok_s, neutral(row.good_at)


def table_lines(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows as lines of at most `width` cells, with one cell of padding on each side."""
    columns = (0, 1, 3) if width < NARROW else (0, 1, 2, 3, 4)
    widths = {column: max(cell_len(row[column]) for row in rows) for column in columns}
    others = sum(widths[column] + 2 for column in columns if column not in (0, 4))
    widths[0] = max(8, min(widths[0], width - 4 - others if width < NARROW else 34))
    lines = []
    for row in rows:
        cells = [_fitted(row[column], widths[column], is_right=column in (1, 3)) for column in columns]
        lines.append(_cut("  ".join(cells).rstrip(), max(8, width - 3)))
    return lines


def _fitted(text: str, width: int, *, is_right: bool) -> str:
    text = _cut(text, width)
    return " " * (width - cell_len(text)) + text if is_right else text + " " * (width - cell_len(text))


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip() + "…"
