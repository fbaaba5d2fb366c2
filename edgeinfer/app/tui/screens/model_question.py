"""A question of the models screen that y answers with yes and any other key with no.

In: its text. Out: the answer. Knows nothing of models.
"""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widgets import Static


class ModelQuestion(ModalScreen[bool]):
    """One line or a few at the bottom of the screen."""

    DEFAULT_CSS = """
    ModelQuestion { align: center bottom; background: transparent; }
    ModelQuestion > Static {
        width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $surface; color: $text-warning;
        border-top: solid $warning;
    }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The question."""
        yield Static(f"{self._text} (y or n)", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Answer."""
        event.stop()
        event.prevent_default()
        self.dismiss(event.key == "y")
