"""The viewer: a text to read, scrolled with keys and copied as a whole.

In: a title and a text. Out: nothing. Control characters are shown as symbols.
"""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from edgeinfer.app.tui.clipboard import copy
from edgeinfer.app.tui.text.neutral import neutral


class ViewerScreen(Screen[None]):
    """Shows a text until Escape is pressed."""

    DEFAULT_CSS = """
    ViewerScreen #viewer-title { height: 1; padding: 0 1; background: $panel; color: $text; text-wrap: nowrap; }
    ViewerScreen #viewer-text { padding: 0 1; }
    """
    AUTO_FOCUS = "#viewer-scroll"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "back", id="viewer.back"),
        Binding("ctrl+y,y", "copy", "copy", id="viewer.copy"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._heading = title
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(neutral(self._heading), id="viewer-title", markup=False)
        with VerticalScroll(id="viewer-scroll"):
            yield Static(neutral(self._text), id="viewer-text", markup=False)
        yield Footer()

    def action_leave(self) -> None:
        """Close the screen."""
        self.dismiss(None)

    @work(group="clipboard")
    async def action_copy(self) -> None:
        """Copy the whole original text."""
        copied = await copy(self.app, self._text)
        self.notify(copied.notice, markup=False)
