"""The transcript entry of several answers to one question: columns side by side on wide terminals, else one at a time.

In: pieces of text for each answer, how far each is, the choice. Out: lines. Answers that have no column have a line
that says how far they are; `turn` shows the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from edgeinfer.app.plain_text import counted
from edgeinfer.app.tui.text.drawing import Drawer
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.entries import WRITING, AnswerEntry

WIDE_CELLS = 110
"""Least width of columns side by side; a terminal of 120 cells has it."""
LEAST_CELLS = 26
GAP = " │ "
TALL_LINES = 24
"""Columns of more lines have their heads below them, too: the view follows the end."""

ColumnState = Literal["waits", "writing", "done", "not needed", "stopped", "cut", "failed", "kept"]


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """How far an answer is, and what it says, if that is short."""

    n_tokens: int = 0
    state: ColumnState = "waits"
    says: str = ""


class AnswerColumns(AnswerEntry):
    """Several answers, of which the one that is looked at, or kept, stands for all: it is what is copied."""

    def __init__(self, numbers: Sequence[int], *, thinking: str = "fold") -> None:
        """`numbers`: of the messages of the answers."""
        super().__init__(numbers[0], thinking=thinking)
        self.columns = tuple(AnswerEntry(number, thinking=thinking) for number in numbers)
        for column in self.columns:
            column.begin()
        self._heads = [ColumnHead()] * len(numbers)
        self._first = 0
        self._kept: int | None = None
        self._inner: Drawer | None = None
        self._inner_of: tuple[Drawer, int] | None = None
        self._is_writing = True
        self.n_shown = 1
        """Columns that were drawn last."""

    @property
    def source(self) -> str:
        """The text of the answer that is kept, or looked at."""
        return self.columns[self._first if self._kept is None else self._kept].source

    @property
    def heads(self) -> tuple[ColumnHead, ...]:
        """How far each answer is."""
        return tuple(self._heads)

    def grow_column(self, place: int, piece: str) -> None:
        """Append text to an answer."""
        self.columns[place].grow(piece)
        self.alter()

    def show_heads(self, heads: Sequence[ColumnHead]) -> None:
        """Show how far the answers are."""
        if list(heads) != self._heads:
            self._heads = list(heads)
            self.alter()

    def turn(self, by: int) -> None:
        """Look at another answer."""
        self._first = (self._first + by) % len(self.columns)
        self.alter()

    def decide(self, kept: int, texts: Sequence[str], note: str) -> None:
        """All are over: set the texts, the one that is kept, and the line under them."""
        self._kept, self._first, self._is_writing, self._note = kept, kept, False, note
        self.number = self.columns[kept].number
        for column, text in zip(self.columns, texts, strict=True):
            column.finish(text, "")
        self.alter()

    def forget(self) -> None:
        super().forget()
        for column in self.columns:
            column.forget()

    @property
    def is_folded(self) -> bool:
        return any(column.is_folded for column in self.columns)

    def fold(self, *, is_folded: bool) -> None:
        for column in self.columns:
            column.fold(is_folded=is_folded)
        self.alter()

    def estimate(self, width: int) -> int:
        shown = self._visible(width)
        return max(self.columns[place].estimate(max(1, width // len(shown))) for place in shown) + 3

    def draw(self, drawer: Drawer) -> list[Strip]:
        shown = self._visible(drawer.width)
        self.n_shown = len(shown)
        width = (drawer.width - len(GAP) * (len(shown) - 1)) // len(shown)
        inner = self._inner_drawer(drawer, width)
        bodies = [self.columns[place].lines(inner)[:-1] for place in shown]
        heads = [self._head(place, inner)[:1] for place in shown]
        top = [*_beside(heads, width, drawer), Strip.blank(0)] if len(shown) > 1 else []
        bottom = [Strip.blank(0), *top[:-1]] if top and max(map(len, bodies)) > TALL_LINES else []
        note = self._telling(len(shown)) if self._is_writing else self._note
        lines = [*top, *_beside(bodies, width, drawer), *bottom, *self._others(drawer, shown), Strip.blank(0)]
        return [*lines, *drawer.plain(neutral(note), drawer.palette.muted)]

    def _telling(self, n_shown: int) -> str:
        """The line under answers that are being written."""
        if self._doing != WRITING:
            return self._doing
        if n_shown < len(self.columns):
            return "Alt+←/Alt+→ show another · Esc stops all"
        return f"{len(self.columns)} answers are being written side by side · Esc stops all"

    def _visible(self, width: int) -> list[int]:
        """The answers that have a column: those that fit, from the one that is looked at."""
        n, fitting = len(self.columns), max(1, (width + len(GAP)) // (LEAST_CELLS + len(GAP)))
        if width < WIDE_CELLS:
            return [self._first]
        if fitting >= n:
            return list(range(n))
        return sorted((self._first + place) % n for place in range(fitting))

    def _inner_drawer(self, drawer: Drawer, width: int) -> Drawer:
        """The drawer of a column, which stays the same while the width does."""
        if self._inner is None or self._inner_of != (drawer, width):
            self._inner, self._inner_of = Drawer(width, drawer.palette), (drawer, width)
        return self._inner

    def _others(self, drawer: Drawer, shown: Sequence[int]) -> list[Strip]:
        """A line for each answer, if not all have a column."""
        if len(shown) == len(self.columns):
            return []
        lines = [Strip.blank(0)]
        for place in range(len(self.columns)):
            mark, style = ("▸ ", drawer.palette.accent) if place in shown else ("  ", drawer.palette.muted)
            lines += drawer.plain(f"{mark}{self._words(place)}", style)[:1]
        return lines

    def _head(self, place: int, drawer: Drawer) -> list[Strip]:
        is_kept = place == self._kept
        is_open = self._kept is None and self._heads[place].state in ("waits", "writing")
        style = drawer.palette.accent if is_kept or is_open else drawer.palette.muted
        return drawer.plain(self._words(place), f"{style} bold" if is_kept else style)

    def _words(self, place: int) -> str:
        head = self._heads[place]
        place_and_says = f"{'✓ ' if place == self._kept else ''}{place + 1}{f' says {head.says}' if head.says else ''}"
        tokens = [counted(head.n_tokens, "token")] if head.n_tokens else []
        return " · ".join([place_and_says, head.state, *tokens])


def _beside(columns: Sequence[Sequence[Strip]], width: int, drawer: Drawer) -> list[Strip]:
    """Lines of columns, joined to lines of the whole width."""
    gap = Strip([Segment(GAP, Style.parse(drawer.palette.muted))])
    lines = []
    for row in range(max(map(len, columns))):
        parts: list[Strip] = []
        for place, column in enumerate(columns):
            cell = column[row] if row < len(column) else Strip.blank(0)
            is_last = place == len(columns) - 1
            parts += [cell] if is_last else [cell.adjust_cell_length(width), gap]
        lines.append(Strip.join(parts))
    return lines
