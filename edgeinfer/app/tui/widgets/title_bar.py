"""The line at the top: the chat's title, and the model that answers.

In: texts. Out: one line, cut where it is too long. Knows no chat and no model.
"""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.widgets import Static

from edgeinfer.app.tui.text.neutral import neutral


class TitleBar(Static):
    """One line; it is drawn again only when it has changed."""

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
        self._shown = ""

    def show(self, title: str, model: str) -> None:
        """Show a title at the left and a model's name at the right."""
        self._title, self._model = neutral(title).replace("\n", " "), neutral(model)
        self._draw()

    def on_resize(self) -> None:
        """The width has changed."""
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width
        model = self._model if cell_len(self._model) <= width * 2 // 3 else set_cell_size(self._model, width * 2 // 3)
        room = max(0, width - cell_len(model) - 1)
        line = set_cell_size(self._title, room) + " " + model if width else ""
        if line != self._shown:
            self._shown = line
            self.update(Content(line))
