"""What is shown on a terminal too small for anything else; it goes by itself when there is room.

In: the least size. Out: nothing. What is below it stays as it is.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Static

LEAST_WIDTH, LEAST_HEIGHT = 40, 12


def is_too_small(width: int, height: int) -> bool:
    """Whether nothing of use can be shown in so many cells."""
    return width < LEAST_WIDTH or height < LEAST_HEIGHT


class TooSmallScreen(ModalScreen[None]):
    """Covers everything."""

    DEFAULT_CSS = """
    TooSmallScreen { background: $background; align: center middle; }
    TooSmallScreen Static { width: auto; max-width: 100%; height: auto; }
    """

    def compose(self) -> ComposeResult:
        yield Static(markup=False)

    def on_resize(self, event: Resize) -> None:
        """How large the terminal is, and how large it should be."""
        width, height = event.size
        found = f"{width}x{height} cells; {LEAST_WIDTH}x{LEAST_HEIGHT} are needed"
        self.query_one(Static).update(found)
