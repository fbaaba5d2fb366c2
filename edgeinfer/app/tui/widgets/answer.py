"""An answer as the transcript shows it: Markdown that grows, thoughts that fold, what was drafted, and its numbers.

In: pieces of text, and how it ended. Out: lines. The text as it came stays in `source`, whatever is shown.
"""

from __future__ import annotations

from rich.text import Text
from textual.strip import Strip

from edgeinfer.app.tui.text.drawing import Drawer
from edgeinfer.app.tui.text.fences import Fence, fences_of
from edgeinfer.app.tui.text.growing_lines import GrowingLines
from edgeinfer.app.tui.text.neutral import NeutralStream, neutral
from edgeinfer.app.tui.text.thinking import Section, may_begin_thought, sections_of
from edgeinfer.app.tui.widgets.entry import Entry, estimated_lines

WRITING = "…"
TINTS = ("green", "yellow", "cyan", "magenta", "blue", "red")


class Answer(Entry):
    """What a model said. `runs`: who drafted how many characters, in order, where that is known."""

    def __init__(self, number: int, text: str = "", *, note: str = "", thinking: str = "fold") -> None:
        super().__init__(number)
        self.runs: tuple[tuple[int, str | None], ...] = ()
        self._thinking = thinking
        self._is_tinted = False
        self._is_writing = False
        self._note = note
        self._pieces: list[str] = []
        self._neutral = NeutralStream()
        self._shown = ""
        self._n_pushed = 0
        self._sections: tuple[Section, ...] = ()
        self._lines_of_text = GrowingLines()
        if text:
            self._push(text)
            self._end_text()

    @property
    def source(self) -> str:
        """The text as the model wrote it."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def fences(self) -> tuple[Fence, ...]:
        """Its code fences."""
        return fences_of(self.source)

    @property
    def is_tinted(self) -> bool:
        """Whether it shows what was drafted."""
        return self._is_tinted

    def begin(self) -> None:
        """It is being written, from the beginning or from where it ended."""
        text = self.source
        self._begin_text()
        self._push(text)
        self._is_writing, self._is_tinted = True, False
        self.alter()

    def grow(self, piece: str) -> None:
        """More of it has come; the transcript asks for the lines when it draws next."""
        self._push(piece)
        self.alter()

    def finish(self, text: str, note: str) -> None:
        """It is over: this is its whole text, and the line under it."""
        if text != self.source:
            self._begin_text()
            self._push(text)
        self._end_text()
        self._is_writing, self._note = False, note
        self.alter()

    def toggle_tint(self) -> None:
        """Show what was drafted and by whom, or the text as Markdown again."""
        self._is_tinted = bool(self.runs) and not self._is_tinted
        self.alter()

    def toggle(self) -> None:
        """Open its thoughts, or fold them."""
        self._thinking = "fold" if self._thinking == "show" else "show"
        self.alter()

    def estimate(self, width: int) -> int:
        return estimated_lines(self.source, width) + 2

    def draw(self, drawer: Drawer) -> list[Strip]:
        lines = self.sibling_lines(drawer)
        if self._is_tinted:
            body = self._tinted(drawer)
        else:
            body = [*self._thoughts(drawer), *self._lines_of_text.lines(drawer)]
        note = WRITING if self._is_writing else self._note
        return [*lines, *body, *(drawer.plain(neutral(note), drawer.palette.muted) if note else [])]

    def _begin_text(self) -> None:
        self._pieces, self._neutral, self._lines_of_text = [], NeutralStream(), GrowingLines()
        self._shown, self._n_pushed, self._sections = "", 0, ()

    def _push(self, piece: str) -> None:
        self._pieces.append(piece)
        self._shown += self._neutral.push(piece)
        self._split()

    def _end_text(self) -> None:
        self._shown += self._neutral.finish()
        self._split(is_over=True)
        self._lines_of_text.finish()

    def _split(self, *, is_over: bool = False) -> None:
        """Tell thoughts from text; only what is new of the text goes on."""
        if not is_over and not self._n_pushed and may_begin_thought(self._shown):
            return
        sections = sections_of(self._shown)
        self._sections = tuple(section for section in sections if section.is_thought)
        text = next((section.text for section in sections if not section.is_thought), "")
        self._lines_of_text.push(text[self._n_pushed :])
        self._n_pushed = len(text)

    def _thoughts(self, drawer: Drawer) -> list[Strip]:
        lines: list[Strip] = []
        for section in self._sections:
            if self._thinking == "hide" and not section.is_open:
                continue
            n_words = len(section.text.split())
            verb = "thinking" if section.is_open and self._is_writing else "thought"
            sign = "▾" if self._thinking == "show" else "▸"
            lines += drawer.plain(f"{sign} {verb}, {n_words} words (Alt+T)", drawer.palette.muted)
            if self._thinking == "show":
                lines += drawer.plain(section.text, drawer.palette.muted)
            lines.append(Strip.blank(0))
        return lines

    def _tinted(self, drawer: Drawer) -> list[Strip]:
        """The text as it is, what was drafted in a colour of its drafter."""
        sources = sorted({source for _, source in self.runs if source is not None})
        styles = {source: f"{TINTS[place % len(TINTS)]} underline" for place, source in enumerate(sources)}
        text, legend, at, stream = Text(), Text("drafted by ", style=drawer.palette.muted), 0, NeutralStream()
        for n_characters, source in self.runs:
            piece = stream.push(self.source[at : at + n_characters])
            text.append(piece.expandtabs(4), style="" if source is None else styles[source])
            at += n_characters
        text.append(stream.finish() + neutral(self.source[at:]))
        for source in sources:
            n_drafted = sum(count for count, drafter in self.runs if drafter == source)
            legend.append(f"{source} {100 * n_drafted / max(1, len(self.source)):.0f} % ", style=styles[source])
        if not sources:
            legend = Text("nothing of it was drafted", style=drawer.palette.muted)
        return [*drawer.text(text), *drawer.text(legend)]
