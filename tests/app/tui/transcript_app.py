"""An app that shows a transcript and nothing else, and messages to show in it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import App, ComposeResult

from edgeinfer.app.tui.widgets.entries import AnswerEntry, ChatEntry, QuestionEntry
from edgeinfer.app.tui.widgets.transcript import Transcript


class Shown(App[None]):
    """Shows `entries` from the beginning."""

    def __init__(self, entries: Sequence[ChatEntry] = (), theme: str = "textual-dark") -> None:
        super().__init__()
        self._entries, self._wanted_theme = entries, theme

    def compose(self) -> ComposeResult:
        yield Transcript()

    async def on_mount(self) -> None:
        self.theme = self._wanted_theme
        await self.transcript.show(self._entries)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def lines(self) -> list[str]:
        """What is seen."""
        return [self.transcript.render_line(y).text.rstrip() for y in range(self.transcript.size.height)]

    @property
    def is_settled(self) -> bool:
        """Whether all that is to be drawn is."""
        return self.transcript._pending is None and self.transcript._sees_drawn()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def talk(n_messages: int) -> list[ChatEntry]:
    """Questions and answers, short ones."""
    entries: list[ChatEntry] = []
    for number in range(n_messages):
        if number % 2:
            entries.append(AnswerEntry(number, f"answer {number}\n\n- one\n- two\n\nend {number}", note="note"))
        else:
            entries.append(QuestionEntry(number, f"question {number}"))
    return entries
