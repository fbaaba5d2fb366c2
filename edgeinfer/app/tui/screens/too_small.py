"""Shown while the terminal is too small for anything else; closed when it is enlarged.

In: the size of the terminal. Out: nothing. The screen below is left unchanged.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.widgets import Static

LEAST_WIDTH, LEAST_HEIGHT = 40, 12


def is_too_small(width: int, height: int) -> bool:
    """Whether a terminal of this size is too small to use."""
    return width < LEAST_WIDTH or height < LEAST_HEIGHT


class TooSmallScreen(ModalScreen[None]):
    """Covers the whole terminal."""

    DEFAULT_CSS = """
    TooSmallScreen { background: $background; align: center middle; }
    TooSmallScreen Static { width: auto; max-width: 100%; height: auto; }
    """

    def compose(self) -> ComposeResult:
        yield Static(markup=False)

    def on_mount(self) -> None:
        self.say(self.app.size)

    def say(self, size: Size) -> None:
        """Show the current and the required size. During a resize, `App.size` is still the previous size."""
        found = f"the terminal has {size.width}x{size.height} cells; {LEAST_WIDTH}x{LEAST_HEIGHT} are needed"
        self.query_one(Static).update(found)
