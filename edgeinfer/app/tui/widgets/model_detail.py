"""All that is known of one model, in lines that can be scrolled.

In: an entry and its forecast. Out: nothing. Hidden until it is asked for.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from edgeinfer.app.catalogue.entries import ModelEntry
from edgeinfer.app.catalogue.forecast import Forecast
from edgeinfer.app.catalogue.words import detail_lines


class ModelDetail(VerticalScroll):
    """What a header and a forecast say of a model."""

    DEFAULT_CSS = """
    ModelDetail { height: auto; max-height: 50%; padding: 0 1; background: $surface; display: none; }
    """

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(markup=False)

    def show(self, entry: ModelEntry, found: Forecast | None) -> None:
        """Show a model."""
        self.query_one(Static).update("\n".join(detail_lines(entry, found)))
