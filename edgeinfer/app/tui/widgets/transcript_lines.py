"""Lines of the transcript: where each entry begins, their colours, their left edge, and the selected text.

In: heights of entries, first estimated, later measured; drawn lines; the app's theme; a selection in lines of the
widget and characters of a line. Out: line numbers, complete lines, the text of a selection. Knows no entries and no
messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.cache import LRUCache
from textual.color import Color, ColorParseError
from textual.selection import Selection
from textual.strip import Strip

from edgeinfer.app.tui.graphics.kitty import PLACEHOLDER
from edgeinfer.app.tui.text.drawing import Palette

EDGE = "▌ "
REVERSE = Style(reverse=True)
MOST_LINES = 500
MORE = " ↓ more below: Alt+End "

Edge = Literal["none", "plain", "selected"]


class Heights:
    """Heights by the index of the entry, from 0."""

    def __init__(self) -> None:
        self._heights: list[int] = []
        self._is_measured: list[bool] = []
        self._ends: list[int] = []

    def guess_all(self, heights: Iterable[int]) -> None:
        """Start over with an estimated height for each entry."""
        self._heights = list(heights)
        self._is_measured = [False] * len(self._heights)

    def guess(self, height: int) -> None:
        """Append an entry with an estimated height."""
        self._heights.append(height)
        self._is_measured.append(False)

    def measure(self, place: int, height: int) -> None:
        """Set the measured height of an entry."""
        self._heights[place], self._is_measured[place] = height, True

    def settle(self) -> None:
        """Recompute where each entry begins."""
        self._ends = list(accumulate(self._heights))

    @property
    def total(self) -> int:
        """Total number of lines."""
        return self._ends[-1] if self._ends else 0

    def of(self, place: int) -> int:
        """Height of an entry."""
        return self._heights[place]

    def is_measured(self, place: int) -> bool:
        """Whether an entry's height has been measured."""
        return self._is_measured[place]

    def top(self, place: int) -> int:
        """The first line of an entry."""
        return self._ends[place - 1] if place else 0

    def end(self, place: int) -> int:
        """The line after an entry's last one."""
        return self._ends[place]

    def at(self, line: int) -> tuple[int, int]:
        """The entry at a line and the offset within it; lines past the end belong to the last entry."""
        place = min(bisect_right(self._ends, line), len(self._ends) - 1)
        return place, line - self.top(place)


def palette_of(app: App[object]) -> Palette:
    """The palette for the app's theme."""
    theme = app.current_theme
    variables = app.theme_variables
    is_ansi = "ansi" in theme.name
    if app.no_color:
        return Palette(has_colour=False)
    accent = _rich_colour(variables.get("text-primary", "")) or _rich_colour(variables.get("primary", ""))
    code_theme = ("ansi_dark" if theme.dark else "ansi_light") if is_ansi else ("monokai" if theme.dark else "friendly")
    return Palette(
        accent=f"{accent} bold".strip(),
        muted="dim",
        code=_rich_colour(variables.get("text-accent", "")) or _rich_colour(variables.get("accent", "")) or "bold",
        code_theme=code_theme,
    )


def _rich_colour(text: str) -> str:
    """Convert a Textual colour to Rich's name for it, or "" if it is none."""
    try:
        colour = Color.parse(text)
    except (ColorParseError, ValueError):
        return ""
    return colour.rich_color.name


@dataclass(frozen=True, slots=True)
class EdgeStyle:
    """Style shared by all lines of the screen.

    top: the number of the first line; more: the line that announces more text below, or -1; selected: style of selected
    text.
    """

    width: int
    top: int
    more: int
    style: Style
    selection: Selection | None
    selected: Style


class EdgedLines:
    """A cache of complete lines; `accent` is the style of edges."""

    def __init__(self, accent: Style) -> None:
        self._accent = accent
        self._edges = {
            "none": Segment(" " * len(EDGE)),
            "plain": Segment(EDGE, accent),
            "selected": Segment(EDGE, accent + REVERSE),
        }
        self._made: LRUCache[tuple[int, Edge, int], tuple[Strip, Strip]] = LRUCache(MOST_LINES)

    def clear(self) -> None:
        """Clear the cache, because the style of all lines has changed."""
        self._made.clear()

    def line(self, inner: Strip, edge: Edge, number: int, look: EdgeStyle) -> Strip:
        """Add the edge to a drawn line. `number` is its position in the transcript, to which text selections refer."""
        key = id(inner), edge, number
        found = self._made.get(key)
        if found is None or found[0] is not inner:
            made = Strip([self._edges[edge], *inner]).adjust_cell_length(look.width).apply_style(look.style)
            found = self._made[key] = inner, made.apply_offsets(0, number)
        if look.selection is None:
            return found[1]
        return highlighted(found[1], look.selection, number, look.selected)

    def more(self, look: EdgeStyle) -> Strip:
        """The line that announces more text below."""
        return Strip([Segment(MORE, self._accent)]).adjust_cell_length(look.width).apply_style(look.style)


def highlighted(strip: Strip, selection: Selection, line: int, style: Style) -> Strip:
    """Highlight the selected part of a line, and renew the offsets of its pieces."""
    span = selection.get_span(line)
    if span is None:
        return strip
    text = strip.text
    begin, end = (cell_len(text[:place]) for place in (span[0], len(text) if span[1] < 0 else span[1]))
    if begin >= end:
        return strip
    before, selected, after = strip.crop(0, begin), strip.crop(begin, end), strip.crop(end)
    selected = Strip([segment._replace(style=(segment.style or Style()) + style) for segment in selected])
    return Strip.join([before, selected, after]).apply_offsets(0, line)


def extracted(selection: Selection, n_lines: int, text_of: Callable[[int], str]) -> str:
    """The selected text. `text_of(line)` returns a line; called only for selected lines.

    The common left margin is removed, because edges and margins are not part of the text, nor are pictures.
    """
    first = 0 if selection.start is None else max(0, selection.start.y)
    last = n_lines - 1 if selection.end is None else min(n_lines - 1, selection.end.y)
    taken = []
    for line in range(first, last + 1):
        text, span = text_of(line), selection.get_span(line)
        if span is not None:
            begin, end = span[0], len(text) if span[1] < 0 else span[1]
            text = text if PLACEHOLDER not in text else ""
            taken.append((" " * begin + text[begin:end]).rstrip())
    margin = min((len(text) - len(text.lstrip()) for text in taken if text), default=0)
    return "\n".join(text[margin:] for text in taken)
