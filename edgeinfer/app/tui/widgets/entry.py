"""Base class of transcript entries: numbered items that draw themselves as lines and know their siblings.

In: a `Drawer`. Out: strips, cached until something changes. Entries are not widgets: hundreds of them cost only memory,
and only visible ones are drawn.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.strip import Strip

from edgeinfer.app.tui.text.drawing import Drawer

FIRST_ESTIMATE = 3


class ChatEntry:
    """A message. `changed` is called when its lines change."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.changed: Callable[[ChatEntry], None] | None = None
        self._siblings = (1, 1)
        self._lines: list[Strip] = []
        self._drawn_by: Drawer | None = None

        self.fold_lines: tuple[int, ...] = ()
        """Lines that announce folded content; clicking one unfolds it."""

    @property
    def is_question(self) -> bool:
        """Whether the user wrote it."""
        return False

    @property
    def is_folded(self) -> bool:
        """Whether anything is folded."""
        return False

    def fold(self, *, is_folded: bool) -> None:
        """Fold or unfold whatever can be folded."""

    def toggle(self) -> None:
        """Toggle folding."""
        self.fold(is_folded=not self.is_folded)

    @property
    def is_drawn(self) -> bool:
        """Whether its lines are cached, from any drawer."""
        return self._drawn_by is not None

    def is_drawn_by(self, drawer: Drawer | None) -> bool:
        """Whether its lines are cached from this drawer."""
        return self._drawn_by is not None and self._drawn_by is drawer

    def show_siblings(self, index: int, count: int) -> None:
        """Set its position among its siblings, from 1, and their count; shown if there are others."""
        self._siblings = (index, count)
        self.alter()

    def alter(self) -> None:
        """Mark its lines as outdated."""
        self._drawn_by = None
        if self.changed is not None:
            self.changed(self)

    def forget(self) -> None:
        """Drop its cached lines; they are redrawn when needed."""
        self._lines, self._drawn_by = [], None

    def lines(self, drawer: Drawer) -> list[Strip]:
        """Its lines, followed by a blank one."""
        if self._drawn_by is not drawer:
            self._lines, self._drawn_by = [*self.draw(drawer), Strip.blank(0)], drawer
        return self._lines

    def estimate(self, width: int) -> int:
        """Estimated number of lines, used until it is drawn."""
        return FIRST_ESTIMATE

    def draw(self, drawer: Drawer) -> list[Strip]:
        """Draw its lines."""
        return []

    def sibling_lines(self, drawer: Drawer) -> list[Strip]:
        """A line with its position among its siblings, if there are others."""
        index, count = self._siblings
        return drawer.plain(f"‹ {index}/{count} ›", drawer.palette.muted) if count > 1 else []


def estimated_lines(text: str, width: int) -> int:
    """Estimated number of lines of a text."""
    return sum(1 + len(line) // max(1, width) for line in text.split("\n"))
