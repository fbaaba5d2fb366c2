"""The banner of a chat that cannot be saved: it stays as long as the app, so that nobody counts on what is lost.

In: why. Out: a few lines under the title. Saves nothing.
"""

from __future__ import annotations

from textual.widgets import Static

from edgeinfer.app.tui.text.neutral import neutral


class UnsavedBanner(Static):
    """As many lines as it needs, three at most."""

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
