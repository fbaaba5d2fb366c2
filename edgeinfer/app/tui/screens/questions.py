"""Yes-or-no questions at the bottom of the screen.

In: the text of the question. Out: the answer. Knows nothing of models and downloads nothing.
"""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widgets import Static


class ModelQuestion(ModalScreen[bool]):
    """A short question about a model, answered with y or any other key."""

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
        """The text of the question."""
        yield Static(f"{self._text} (y or n)", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Answer: y means yes, any other key no."""
        event.stop()
        event.prevent_default()
        self.dismiss(event.key == "y")


ANSWERS = {"enter": True, "y": True, "Y": True, "n": False, "N": False, "escape": False}


class DownloadQuestion(ModalScreen[bool]):
    """Asks whether to download a model."""

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
        """The text of the question."""
        yield Static(f"{self._text}\nFetch it? Enter or y: yes. n: no.", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Answer with one of the keys in ANSWERS; Ctrl+Q exits the app as on every screen."""
        if event.key == "ctrl+q":
            return
        event.stop()
        event.prevent_default()
        if event.key in ANSWERS:
            self.dismiss(ANSWERS[event.key])
