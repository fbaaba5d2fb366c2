"""The question whether a model that nobody named is to be fetched: Enter or y for yes, n or Escape for no.

In: its text. Out: the answer. Other keys do nothing, for whoever types ahead has not read it. Fetches nothing.
"""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widgets import Static

ANSWERS = {"enter": True, "y": True, "Y": True, "n": False, "N": False, "escape": False}


class DownloadQuestion(ModalScreen[bool]):
    """A few lines at the bottom of the screen."""

    DEFAULT_CSS = """
    DownloadQuestion { align: center bottom; background: transparent; }
    DownloadQuestion > Static {
        width: 100%; height: auto; max-height: 100%; padding: 0 1; background: $surface; color: $text;
        border-top: solid $primary;
    }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The question."""
        yield Static(f"{self._text}\nFetch it? Enter or y: yes. n: no.", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Answer; Ctrl+Q leaves the app as everywhere."""
        if event.key == "ctrl+q":
            return
        event.stop()
        event.prevent_default()
        if event.key in ANSWERS:
            self.dismiss(ANSWERS[event.key])
