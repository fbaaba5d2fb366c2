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

    def show(self, texts: Sequence[str], *, is_held: bool = False) -> None:
        """Show these prompts; the keys come first, for long prompts are cut.

        is_held: they are not sent when an answer is over, for none is being made: Enter sends the first one.
        """
        self.n_waiting = len(texts)
        if texts:
            verb = "waits" if len(texts) == 1 else "wait"
            keys = "Enter sends, Up takes back" if is_held else "Up takes back"
            self.update(f"{len(texts)} {verb} ({keys}): {' '.join(neutral(texts[-1]).split())}")
        self.set_class(bool(texts), "-filled")
