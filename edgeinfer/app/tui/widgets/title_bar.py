"""The top lines: the chat's title, its system prompt and model, and a banner if nothing is saved.

In: texts. Out: one line, truncated if too long. Knows no chat and no model.
"""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.widgets import Static

from edgeinfer.app.tui.text.neutral import neutral

BETWEEN = " · "


class TitleBar(Static):
    """One line, redrawn only when it changes."""

    DEFAULT_CSS = """
    TitleBar {
        height: 1;
        padding: 0 1;
        background: $panel;
        color: $text;
        text-wrap: nowrap;
    }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._title = ""
        self._model = ""
        self._prompt = ""
        self._shown = ""

    def show(self, title: str, model: str, prompt: str = "") -> None:
        """Show the title on the left, and on the right the name of the system prompt (`prompt`) and the model's."""
        self._title, self._model, self._prompt = neutral(title).replace("\n", " "), neutral(model), neutral(prompt)
        self._draw()

    def on_resize(self) -> None:
        """Redraw for the new width."""
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width
        model = self._model if cell_len(self._model) <= width * 2 // 3 else set_cell_size(self._model, width * 2 // 3)
        if self._prompt:  # before the title, as users do not expect a system prompt they cannot see
            room = width - cell_len(model) - len(BETWEEN)
            prompt = self._prompt if cell_len(self._prompt) <= room else set_cell_size(self._prompt, max(0, room))
            model = f"{prompt}{BETWEEN}{model}"
        room = max(0, width - cell_len(model) - 1)
        line = set_cell_size(self._title, room) + " " + model if width else ""
        if line != self._shown:
            self._shown = line
            self.update(Content(line))


class UnsavedBanner(Static):
    """A warning of up to three lines."""

    DEFAULT_CSS = """
    UnsavedBanner {
        height: auto;
        max-height: 3;
        padding: 0 1;
        background: $warning-muted;
        color: $text-warning;
    }
    """

    def __init__(self, reason: str) -> None:
        super().__init__(neutral(f"Not saved, gone when you leave: {reason}"), markup=False)
