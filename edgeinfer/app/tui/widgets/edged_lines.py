"""Lines of a transcript with their edge at the left, which says whose they are: each made once while it stays.

In: drawn lines, kinds of edges, what all lines of a screen have in common. Out: whole lines. Knows no entries.
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
    """What all lines of a screen have in common.

    top: the number of the first one; more: which of the screen says that there is more, or -1; selected: how selected
    text is shown.
    """

    width: int
    top: int
    more: int
    style: Style
    selection: Selection | None
    selected: Style


class EdgedLines:
    """Made lines; `accent` is the style of edges."""

    def __init__(self, accent: Style) -> None:
        self._accent = accent
        self._edges = {
            "none": Segment(" " * len(EDGE)),
            "plain": Segment(EDGE, accent),
            "selected": Segment(EDGE, accent + REVERSE),
        }
        self._made: LRUCache[tuple[int, Edge, int], tuple[Strip, Strip]] = LRUCache(MOST_LINES)

    def clear(self) -> None:
        """The style of all lines is another one."""
        self._made.clear()

    def line(self, inner: Strip, edge: Edge, number: int, look: EdgeStyle) -> Strip:
        """A drawn line with its edge; it is the `number`th of all, which text that is selected counts by."""
        key = id(inner), edge, number
        found = self._made.get(key)
        if found is None or found[0] is not inner:
            made = Strip([self._edges[edge], *inner]).adjust_cell_length(look.width).apply_style(look.style)
            found = self._made[key] = inner, made.apply_offsets(0, number)
        if look.selection is None:
            return found[1]
        return highlighted(found[1], look.selection, number, look.selected)

    def more(self, look: EdgeStyle) -> Strip:
        """The line that says that there is more."""
        return Strip([Segment(MORE, self._accent)]).adjust_cell_length(look.width).apply_style(look.style)
