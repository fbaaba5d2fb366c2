"""The table of models: one row each, cells updated in place, fewer columns on narrow screens.

In: entries, forecasts, pulls. Out: the entry under the cursor. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual import events
from textual.widgets import DataTable

from edgeinfer.app.catalogue.entries import ModelEntry
from edgeinfer.app.catalogue.forecast import Forecast
from edgeinfer.app.catalogue.pulling import PullStatus
from edgeinfer.app.catalogue.words import UNKNOWN, fit_word, one_line, rate_word, size_word, state_word

WIDTHS = {"state": 8, "name": 0, "quant": 7, "size": 9, "fits": 4, "tok/s": 6, "source": 34}
"""Width of each column in cells; the name takes the remaining width."""
WIDE, MIDDLE = 110, 70
NARROW_COLUMNS = ("state", "name", "fits", "tok/s")
NAME_LEAST = 12
PADDING = 2
SCROLLBAR = 1


def columns_for(width: int) -> tuple[str, ...]:
    """The columns that fit a screen of this width."""
    if width >= WIDE:
        return tuple(WIDTHS)
    return tuple(name for name in WIDTHS if name != "source") if width >= MIDDLE else NARROW_COLUMNS


def name_width(width: int) -> int:
    """Width of the name column."""
    columns = columns_for(width)
    taken = sum(WIDTHS[name] + PADDING for name in columns) + SCROLLBAR
    return max(NAME_LEAST, width - taken)


def shortened(name: str, width: int) -> str:
    """A name with its middle elided if it is too long, because names end with the quant."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 2
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"


class ModelTable(DataTable[Text]):
    """Local models, followed by downloadable ones."""

    DEFAULT_CSS = """
    ModelTable { height: 1fr; background: transparent; scrollbar-size-vertical: 1; }
    """

    def __init__(self, current: str | None = None, *, id: str | None = None) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, id=id)
        self._current = current
        self._entries: dict[str, ModelEntry] = {}
        self._forecasts: dict[str, Forecast | None] = {}
        self._statuses: Mapping[str, PullStatus] = {}
        self._shown_width = 0

    @property
    def chosen(self) -> ModelEntry | None:
        """The entry under the cursor."""
        keys = list(self._entries)
        return self._entries[keys[self.cursor_row]] if 0 <= self.cursor_row < len(keys) else None

    def forecast(self, entry: ModelEntry) -> Forecast | None:
        """The forecast for an entry, or None."""
        return self._forecasts.get(entry.key)

    def show(self, entries: Sequence[ModelEntry], statuses: Mapping[str, PullStatus]) -> None:
        """Show these models; the cursor stays on its model."""
        chosen = self.chosen
        self._entries = {entry.key: entry for entry in entries}
        self._forecasts = {key: found for key, found in self._forecasts.items() if key in self._entries}
        self._statuses = statuses
        self._rebuild()
        if chosen is not None:
            self.select(chosen.key)

    def shows(self, key: str) -> bool:
        """Whether there is a row with this key."""
        return key in self._entries

    def select(self, key: str) -> None:
        """Move the cursor to a model, if it is listed."""
        if key in self._entries:
            self.move_cursor(row=list(self._entries).index(key))

    def select_name(self, name: str) -> None:
        """Move the cursor to the local model of this name."""
        for entry in self._entries.values():
            if entry.path is not None and entry.name == name:
                self.select(entry.key)

    def set_forecast(self, key: str, found: Forecast | None) -> None:
        """Set the forecast for a model."""
        if key in self._entries:
            self._forecasts[key] = found
            self._update(key)

    def forget_forecasts(self) -> None:
        """Clear all forecasts until new ones arrive."""
        self._forecasts.clear()
        for key in self._entries:
            self._update(key)

    def set_statuses(self, statuses: Mapping[str, PullStatus]) -> None:
        """Update the progress of pulls."""
        before, self._statuses = self._statuses, statuses
        for key, entry in self._entries.items():
            if entry.path is None and before.get(entry.source) != statuses.get(entry.source):
                self._update(key)

    def on_resize(self, event: events.Resize) -> None:
        """Choose the columns that fit."""
        if event.size.width != self._shown_width:
            self._shown_width = event.size.width
            chosen = self.chosen
            self._rebuild()
            if chosen is not None:
                self.select(chosen.key)

    def _rebuild(self) -> None:
        if not self._shown_width:
            return
        self.clear(columns=True)
        for name in columns_for(self._shown_width):
            width = WIDTHS[name] or name_width(self._shown_width)
            self.add_column(Text(name), key=name, width=width)
        for key, entry in self._entries.items():
            self.add_row(*self._cells(entry).values(), key=key)

    def _update(self, key: str) -> None:
        if not self._shown_width:
            return
        for name, cell in self._cells(self._entries[key]).items():
            if self.get_cell(key, name) != cell:
                self.update_cell(key, name, cell)

    def _cells(self, entry: ModelEntry) -> dict[str, Text]:
        found = self._forecasts.get(entry.key)
        is_pending = entry.key not in self._forecasts
        words = {
            "state": state_word(entry, self._statuses.get(entry.source), self._current),
            "name": shortened(one_line(entry.name), name_width(self._shown_width)),
            "quant": one_line(entry.quant or UNKNOWN),
            "size": size_word(entry),
            "fits": "…" if is_pending else fit_word(found),
            "tok/s": "…" if is_pending else rate_word(found),
            "source": one_line(entry.source),
        }
        right = ("size", "tok/s")
        return {
            name: Text(words[name], justify="right" if name in right else "left", overflow="ellipsis", no_wrap=True)
            for name in columns_for(self._shown_width)
        }
