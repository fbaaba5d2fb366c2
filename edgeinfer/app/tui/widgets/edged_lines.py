"""Adds the left edge to lines of a transcript, which shows whose they are; finished lines are cached.

In: drawn lines, kinds of edges, a style shared by all lines of the screen. Out: complete lines. Knows no entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.selection import Selection
from textual.strip import Strip

from edgeinfer.app.tui.widgets.selecting import highlighted

EDGE = "▌ "
REVERSE = Style(reverse=True)
MOST_LINES = 500
MORE = " ↓ more below: Alt+End "

Edge = Literal["none", "plain", "selected"]


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
