"""Base class of the machine screen's panels: renders a record as lines, redrawn only when they change.

In: records. Out: text of the panel's size. Subclasses render the record; a panel fetches nothing itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from textwrap import wrap
from typing import Generic, TypeVar

from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

Record = TypeVar("Record")
Line = tuple[tuple[str, str], ...]
"""A line of texts, each with its style ("" for none)."""

MUTED, STRONG, MAIN, SECOND, OTHER, ALARM = "dim", "bold", "$primary", "$secondary", "$accent", "$warning"


def line(*parts: str | tuple[str, str]) -> Line:
    """Build a line from texts with or without a style."""
    return tuple((part, "") if isinstance(part, str) else part for part in parts)


def wrapped(text: str, width: int, style: str = "") -> list[Line]:
    """Wrap a text into lines."""
    return [line((part, style)) for part in wrap(text, max(1, width))]


def plain(lines: Sequence[Line]) -> list[str]:
    """The lines without styles."""
    return ["".join(text for text, _ in each) for each in lines]


class Panel(Static, Generic[Record]):
    """Keeps the record, and redraws it when the size changes."""

    DEFAULT_CSS = """
    Panel {
        height: 1fr; width: 1fr; padding: 0 1; border: round $surface-lighten-2; border-title-color: $text-muted;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    TITLE = ""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("", markup=False, id=id, classes=classes)
        self.border_title = self.TITLE
        self._record: Record | None = None
        self._lines: tuple[Line, ...] = ()

    @property
    def text(self) -> str:
        """The displayed text, without styles."""
        return "\n".join(plain(self._lines))

    @abstractmethod
    def lines(self, record: Record, width: int, height: int) -> list[Line]:
        """Render a record as lines for this width and height."""

    def show(self, record: Record) -> None:
        """Show a record; redraws only if the lines change."""
        self._record = record
        self._draw()

    def on_resize(self, _event: Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width, height = self.content_size
        if self._record is None or width < 1 or height < 1:
            return
        lines = tuple(self.lines(self._record, width, height)[:height])
        if lines != self._lines:
            self._lines = lines
            rows = (Content.assemble(*((text, style) if style else text for text, style in each)) for each in lines)
            self.update(Content("\n").join(list(rows)), layout=False)
