"""Hints and details on the models screen: what can be looked up, with working examples, and the selected model.

In: whether there are local models, and what is offered. Out: text. Looks nothing up.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from edgeinfer.app.catalogue.entries import ModelEntry
from edgeinfer.app.catalogue.forecast import Forecast
from edgeinfer.app.catalogue.words import detail_lines
from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE

EXAMPLES = (
    ("hub repository", "Qwen/Qwen2.5-0.5B-Instruct-GGUF"),
    ("web address", "https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct-GGUF"),
    ("starter model", STARTER_SOURCE),
    ("a file here", "~/Downloads/model.gguf"),
    ("from Ollama", "ollama:llama3.2"),
)
WIDTH = max(len(meaning) for meaning, _ in EXAMPLES)


class ModelHints(Static):
    """Shown while there is no local model."""

    DEFAULT_CSS = """
    ModelHints { height: auto; max-height: 60%; padding: 0 1; color: $text-muted; display: none; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)

    def show(self, *, here: bool, offers: Sequence[str]) -> None:
        """Show the hints, or hide them once there is a local model."""
        self.display = not here
        if not here:
            self.update("\n".join(hint_lines(offers)))


def hint_lines(offers: Sequence[str]) -> list[str]:
    """What to do without a model, the most important first, because low screens show only the beginning."""
    lines = ["No model is on this computer yet."]
    if STARTER_NAME in offers:
        lines.append("Enter fetches the starter model above: small, quick, good for a first try.")
    lines.append("Or press / and type what to look up, then Enter:")
    return lines + [f"  {meaning:<{WIDTH}}  {example}" for meaning, example in EXAMPLES]


class ModelDetail(VerticalScroll):
    """What is known of a model from its header and forecast."""

    DEFAULT_CSS = """
    ModelDetail { height: auto; max-height: 50%; padding: 0 1; background: $surface; display: none; }
    """

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(markup=False)

    def show(self, entry: ModelEntry, found: Forecast | None) -> None:
        """Show a model."""
        self.query_one(Static).update("\n".join(detail_lines(entry, found)))
