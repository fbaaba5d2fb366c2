"""The list of models on the models screen: the table, the selected model's details, hints, and progress of pulls.

In: entries, forecasts, a queue of pulls. Out: the entry under the cursor; `Moved` when a pull makes progress, `Landed`
when it ends. Cells are updated in place, narrow screens get fewer columns. Decides nothing and looks nothing up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import DataTable, Static

from edgeinfer.app.catalogue.catalogue import ModelEntry
from edgeinfer.app.catalogue.forecast import Forecast
from edgeinfer.app.catalogue.pulling import PullQueue, PullStatus
from edgeinfer.app.catalogue.words import (
    UNKNOWN,
    detail_lines,
    fit_word,
    name_word,
    one_line,
    pull_line,
    rate_word,
    size_word,
    state_word,
)
from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE

WIDTHS = {"state": 8, "name": 0, "quant": 7, "size": 9, "fits": 4, "tok/s": 6, "source": 34}
"""Width of each column in cells; the name takes the remaining width."""
WIDE, MIDDLE = 110, 70
NARROW_COLUMNS = ("state", "name", "fits", "tok/s")
NAME_LEAST = 12
PADDING = 2
SCROLLBAR = 1
EXAMPLES = (
    ("hub repository", "Qwen/Qwen2.5-0.5B-Instruct-GGUF"),
    ("web address", "https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct-GGUF"),
    ("starter model", STARTER_SOURCE),
    ("a file here", "~/Downloads/model.gguf"),
    ("from Ollama", "ollama:llama3.2"),
)
MEANING_WIDTH = max(len(meaning) for meaning, _ in EXAMPLES)
METER_EVERY_S = 0.5
ENDS = ("done", "failed", "refused")


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
            "name": shortened(name_word(entry), name_width(self._shown_width)),
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


class ModelHints(Static):
    """Shown while there is no local model."""

    DEFAULT_CSS = """
    ModelHints { height: auto; max-height: 60%; padding: 0 1; color: $text-muted; display: none; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)

    def show(self, *, here: bool, offers: Sequence[str]) -> None:
        """Show the hints, or hide them once there is a local model."""
        self.display = not here
        if not here:
            self.update("\n".join(hint_lines(offers)))


def hint_lines(offers: Sequence[str]) -> list[str]:
    """What to do without a model, the most important first, because low screens show only the beginning."""
    lines = ["No model is on this computer yet."]
    if STARTER_NAME in offers:
        lines.append(f"Enter fetches the marked one; {STARTER_NAME} is small, quick, good for a first try.")
    lines.append("Or press / and type what to look up, then Enter:")
    return lines + [f"  {meaning:<{MEANING_WIDTH}}  {example}" for meaning, example in EXAMPLES]


class ModelDetail(VerticalScroll):
    """What is known of a model from its header and forecast."""

    DEFAULT_CSS = """
    ModelDetail { height: auto; max-height: 50%; padding: 0 1; background: $surface; display: none; }
    """

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(markup=False)

    def show(self, entry: ModelEntry, found: Forecast | None) -> None:
        """Show a model."""
        self.query_one(Static).update("\n".join(detail_lines(entry, found)))


class PullLines(Static):
    """Progress of pulls."""

    DEFAULT_CSS = """
    PullLines {
        height: auto; max-height: 4; padding: 0 1; color: $text-accent; display: none; text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """

    class Moved(Message):
        """Pulls have made progress; `statuses` by source."""

        def __init__(self, statuses: Mapping[str, PullStatus]) -> None:
            super().__init__()
            self.statuses = statuses

    class Landed(Message):
        """A pull ended, successfully or not."""

        def __init__(self, status: PullStatus) -> None:
            super().__init__()
            self.status = status

    def __init__(self, pulls: PullQueue, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._pulls = pulls
        self._ended: set[str] = set()

    def on_mount(self) -> None:
        """Create the timer, and update once."""
        self._ticks = self.set_interval(METER_EVERY_S, self.look, pause=True)
        self.look()

    def look(self) -> None:
        """Update the lines, and keep polling while a pull is active."""
        statuses = self._pulls.statuses()
        width = self.content_size.width or self.app.size.width - 2
        shown = [pull_line(each, width) for each in statuses if each.is_active or each.state == "paused"]
        self.display = bool(shown)
        self.update("\n".join(shown))
        self.post_message(self.Moved({each.source: each for each in statuses}))
        for status in statuses:
            if status.state not in ENDS:
                self._ended.discard(status.source)
            elif status.source not in self._ended:
                self._ended.add(status.source)
                self.post_message(self.Landed(status))
        if any(each.is_active for each in statuses):
            self._ticks.resume()
        else:
            self._ticks.pause()
