"""The prompts that wait to be sent while an answer is being made.

In: their texts. Out: up to three lines; nothing while none waits. Does not send them.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.widgets import Static

from edgeinfer.app.answer_output import harmless

SHOWN_CAP = 3


class WaitingLine(Static):
    """One line per prompt; the last few, and how many more there are."""

    DEFAULT_CSS = """
    WaitingLine {
        display: none;
        height: auto;
        max-height: 3;
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
        lines = [f"waits: {' '.join(harmless(text).split())}" for text in texts[-SHOWN_CAP:]]
        if len(texts) > SHOWN_CAP:
            lines[0] = f"{len(texts) - SHOWN_CAP + 1} more wait"
        if lines:
            lines[-1] = lines[-1].replace("waits: ", "waits (Up takes it back): ", 1)
        self.update("\n".join(lines))
        self.set_class(bool(lines), "-filled")
