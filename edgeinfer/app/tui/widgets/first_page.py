"""The first page, shown while a chat has no messages: what this is, the model, what to type, a few keys.

In: lines about the model, a line of keys. Out: text, the most important first, because low terminals show only its
beginning. Knows no model and no chat.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from edgeinfer.app.tui.text.neutral import neutral

TITLE = "A language model on this computer. Nothing you type leaves it."
TYPING = ("Ask anything, Enter sends it.", "@ attaches a file, / lists the commands, Escape stops an answer.")
LOW = 12
"""A page with fewer lines omits the title and the blank lines between its parts."""


class FirstPage(Static):
    """Shown over the empty transcript; redrawn only when it changes."""

    DEFAULT_CSS = """
    FirstPage {
        display: none;
        padding: 0 2;
        background: $background;
        color: $foreground;
        &.-shown { display: block; }
    }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._model: tuple[str, ...] = ()
        self._keys = ""
        self._shown = ""

    def show(self, model: Sequence[str], keys: str) -> None:
        """Show lines about the model, and a line of keys."""
        self._model, self._keys = tuple(model), keys
        self._draw()

    def on_resize(self) -> None:
        """Redraw for the new height."""
        self._draw()

    def _draw(self) -> None:
        is_low = self.size.height < LOW
        parts = (self._model, TYPING, (self._keys,)) if is_low else ((TITLE,), self._model, TYPING, (self._keys,))
        text = ("\n" if is_low else "\n\n").join("\n".join(part) for part in parts if part)
        text = neutral(text if is_low else f"\n{text}")
        if text != self._shown:
            self._shown = text
            self.update(Content(text))
