"""What a transcript consists of: something with a number that has lines, and where it stands among its siblings.

In: a `Drawer`. Out: strips, kept until something changes. An entry is no widget: hundreds of them cost nothing but
memory, and only those on the screen are drawn.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.strip import Strip

from edgeinfer.app.tui.text.drawing import Drawer

FIRST_ESTIMATE = 3


class ChatEntry:
    """A message. `changed` is called when its lines are other ones."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.changed: Callable[[ChatEntry], None] | None = None
        self._siblings = (1, 1)
        self._lines: list[Strip] = []
        self._drawn_by: Drawer | None = None

        self.fold_lines: tuple[int, ...] = ()
        """Lines that say that something is folded, and that open it when they are clicked."""

    @property
    def is_question(self) -> bool:
        """Whether a person said it."""
        return False

    @property
    def is_folded(self) -> bool:
        """Whether there is something to open."""
        return False

    def fold(self, *, is_folded: bool) -> None:
        """Fold what can be folded, or open it."""

    def toggle(self) -> None:
        """Open it, or fold it."""
        self.fold(is_folded=not self.is_folded)

    @property
    def is_drawn(self) -> bool:
        """Whether its lines are kept, whoever drew them."""
        return self._drawn_by is not None

    def is_drawn_by(self, drawer: Drawer | None) -> bool:
        """Whether its lines are known."""
        return self._drawn_by is not None and self._drawn_by is drawer

    def show_siblings(self, index: int, count: int) -> None:
        """Say which of its siblings it is, from 1, where it has some."""
        self._siblings = (index, count)
        self.alter()

    def alter(self) -> None:
        """Its lines are to be drawn again."""
        self._drawn_by = None
        if self.changed is not None:
            self.changed(self)

    def forget(self) -> None:
        """Drop its lines; they are drawn again when somebody looks."""
        self._lines, self._drawn_by = [], None

    def lines(self, drawer: Drawer) -> list[Strip]:
        """Its lines, an empty one at the end."""
        if self._drawn_by is not drawer:
            self._lines, self._drawn_by = [*self.draw(drawer), Strip.blank(0)], drawer
        return self._lines

    def estimate(self, width: int) -> int:
        """About how many lines it has, for as long as nobody looks."""
        return FIRST_ESTIMATE

    def draw(self, drawer: Drawer) -> list[Strip]:
        """Draw it."""
        return []

    def sibling_lines(self, drawer: Drawer) -> list[Strip]:
        """A line that says which of its siblings it is, where it has some."""
        index, count = self._siblings
        return drawer.plain(f"‹ {index}/{count} ›", drawer.palette.muted) if count > 1 else []


def estimated_lines(text: str, width: int) -> int:
    """About how many lines a text takes."""
    return sum(1 + len(line) // max(1, width) for line in text.split("\n"))
