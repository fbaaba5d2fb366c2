"""The line of prompts that are queued while an answer is generated.

In: the texts of the prompts. Out: a line with their number and the last one; hidden if there are none. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.widgets import Static

from edgeinfer.app.tui.text.neutral import neutral


class WaitingLine(Static):
    """One line, however many prompts are queued."""

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

    def show(self, texts: Sequence[str], *, is_held: bool = False) -> None:
        """Show these prompts; the keys come first, because long prompts are truncated.

        is_held: no answer is running that would send them when it ends: Enter sends the first one.
        """
        self.n_waiting = len(texts)
        if texts:
            verb = "waits" if len(texts) == 1 else "wait"
            keys = "Enter sends, Up takes back" if is_held else "Up takes back"
            self.update(f"{len(texts)} {verb} ({keys}): {' '.join(neutral(texts[-1]).split())}")
        self.set_class(bool(texts), "-filled")
