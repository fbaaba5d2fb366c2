"""The prompts that wait to be sent while an answer is being made.

In: their texts. Out: a line with how many wait and which one is the last; nothing while none waits. Does not send them.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.widgets import Static

from edgeinfer.app.tui.text.neutral import neutral


class WaitingLine(Static):
    """One line, however many wait."""

    DEFAULT_CSS = """
    WaitingLine {
        display: none;
        height: auto;
        max-height: 1;
        padding: 0 1;
        color: $text-muted;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &.-filled { display: block; }
    }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.n_waiting = 0

    def show(self, texts: Sequence[str]) -> None:
        """Show these prompts; the key that takes the last one back comes first, for long ones are cut."""
        self.n_waiting = len(texts)
        if texts:
            verb = "waits" if len(texts) == 1 else "wait"
            self.update(f"{len(texts)} {verb} (Up takes back): {' '.join(neutral(texts[-1]).split())}")
        self.set_class(bool(texts), "-filled")
