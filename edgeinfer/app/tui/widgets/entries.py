"""The entries of the transcript, questions and answers: numbered items that draw themselves as lines.

In: texts, attachments, pieces of growing text, a `Drawer`. Out: strips, cached until something changes. The original
text stays in `source`, whatever is displayed. Entries are not widgets: hundreds of them cost only memory, and only
visible ones are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text
from textual.strip import Strip

from edgeinfer.app.plain_text import counted
from edgeinfer.app.sessions.records import Attachment, ToolRound
from edgeinfer.app.tui.graphics.image_previews import ImagePreviews
from edgeinfer.app.tui.text.attachments import CountMedium, attachment_line, unknown
from edgeinfer.app.tui.text.calls import CallLines
from edgeinfer.app.tui.text.drawing import Drawer
from edgeinfer.app.tui.text.growing_lines import GrowingLines, GrowingPlain
from edgeinfer.app.tui.text.markdown import Fence, fences_of
from edgeinfer.app.tui.text.neutral import NeutralStream, neutral
from edgeinfer.app.tui.text.thinking import Section, may_begin_thought, sections_of

FIRST_ESTIMATE = 3
FOLDED_LINES, SHOWN_LINES = 24, 16
WRITING = "…"
TINTS = ("green", "yellow", "cyan", "magenta", "blue", "red")


class ChatEntry:
    """A message. `changed` is called when its lines change."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.changed: Callable[[ChatEntry], None] | None = None
        self._siblings = (1, 1)
        self._lines: list[Strip] = []
        self._drawn_by: Drawer | None = None

        self.fold_lines: tuple[int, ...] = ()
        """Lines that announce folded content; clicking one unfolds it."""

    @property
    def is_question(self) -> bool:
        """Whether the user wrote it."""
        return False

    @property
    def is_folded(self) -> bool:
        """Whether anything is folded."""
        return False

    def fold(self, *, is_folded: bool) -> None:
        """Fold or unfold whatever can be folded."""

    def toggle(self) -> None:
        """Toggle folding."""
        self.fold(is_folded=not self.is_folded)

    def click(self, line: int) -> bool:
        """A line was clicked: fold or unfold what it announces. Returns whether its lines have changed."""
        if line in self.fold_lines:
            self.toggle()
        return line in self.fold_lines

    @property
    def is_drawn(self) -> bool:
        """Whether its lines are cached, from any drawer."""
        return self._drawn_by is not None

    def is_drawn_by(self, drawer: Drawer | None) -> bool:
        """Whether its lines are cached from this drawer."""
        return self._drawn_by is not None and self._drawn_by is drawer

    def show_siblings(self, index: int, count: int) -> None:
        """Set its position among its siblings, from 1, and their count; shown if there are others."""
        self._siblings = (index, count)
        self.alter()

    def alter(self) -> None:
        """Mark its lines as outdated."""
        self._drawn_by = None
        if self.changed is not None:
            self.changed(self)

    def forget(self) -> None:
        """Drop its cached lines; they are redrawn when needed."""
        self._lines, self._drawn_by = [], None

    def lines(self, drawer: Drawer) -> list[Strip]:
        """Its lines, followed by a blank one."""
        if self._drawn_by is not drawer:
            self._lines, self._drawn_by = [*self.draw(drawer), Strip.blank(0)], drawer
        return self._lines

    def estimate(self, width: int) -> int:
        """Estimated number of lines, used until it is drawn."""
        return FIRST_ESTIMATE

    def draw(self, drawer: Drawer) -> list[Strip]:
        """Draw its lines."""
        return []

    def sibling_lines(self, drawer: Drawer) -> list[Strip]:
        """A line with its position among its siblings, if there are others."""
        index, count = self._siblings
        return drawer.plain(f"‹ {index}/{count} ›", drawer.palette.muted) if count > 1 else []


def estimated_lines(text: str, width: int) -> int:
    """Estimated number of lines of a text."""
    return sum(1 + len(line) // max(1, width) for line in text.split("\n"))


class QuestionEntry(ChatEntry):
    """The transcript entry of a question."""

    def __init__(
        self,
        number: int,
        text: str,
        attachments: Sequence[Attachment] = (),
        count: CountMedium = unknown,
        previews: ImagePreviews | None = None,
    ) -> None:
        """`count`: counts the tokens of images and sounds; `previews`: how images are drawn."""
        super().__init__(number)
        self.source = text
        self._count = count
        self._previews = previews or ImagePreviews()
        self._images: dict[int, Attachment] = {}  # by the lines of their previews
        self._attachments = tuple(attachments)
        self._is_open = False
        self._is_long = False

    @property
    def is_question(self) -> bool:
        return True

    @property
    def is_folded(self) -> bool:
        return self._is_long and not self._is_open

    def fold(self, *, is_folded: bool) -> None:
        if self._is_open == is_folded:
            self._is_open = not is_folded
            self.alter()

    def estimate(self, width: int) -> int:
        previews = sum(self._previews.n_lines(one.image) for one in self._attachments if one.image is not None)
        return min(FOLDED_LINES, estimated_lines(self.source, width)) + 1 + len(self._attachments) + previews

    def draw(self, drawer: Drawer) -> list[Strip]:
        lines, self._images = self.sibling_lines(drawer), {}
        for attachment in self._attachments:
            preview = [] if attachment.image is None else self._previews.lines(attachment.image, drawer)
            self._images.update((len(lines) + place, attachment) for place in range(len(preview)))
            said = attachment_line(attachment, self._count)
            lines += [*preview, *drawer.plain(said, drawer.palette.muted)]
        text = drawer.plain(neutral(self.source).rstrip("\n")) if self.source.strip() else []
        self._is_long = len(text) > FOLDED_LINES
        self.fold_lines = ()
        if self.is_folded:
            more = f"… {len(text) - SHOWN_LINES} more lines (Alt+T opens)"
            self.fold_lines = (len(lines) + SHOWN_LINES,)
            text = [*text[:SHOWN_LINES], *drawer.plain(more, drawer.palette.muted)]
        return [*lines, *text]

    def click(self, line: int) -> bool:
        if line in self._images:
            self._previews.view(self._images[line])
        return super().click(line)

    def redraw_media(self) -> None:
        """Previews may look different now, or the tokens of images and sounds be others, as another model is open."""
        if any(attachment.medium is not None for attachment in self._attachments):
            self.alter()


class AnswerEntry(ChatEntry):
    """The transcript entry of an answer. `runs`: character counts with their draft source, in order, if known."""

    def __init__(
        self,
        number: int,
        text: str = "",
        *,
        note: str = "",
        thinking: str = "fold",
        rounds: tuple[ToolRound, ...] = (),
    ) -> None:
        """`rounds`: the calls of tools before the text, which are folded whatever `thinking` says."""
        super().__init__(number)
        self._calls = CallLines(rounds)
        self._doing = WRITING
        self.runs: tuple[tuple[int, str | None], ...] = ()
        self._thinking = thinking
        self._is_unfolded: bool | None = None  # None: as `thinking` says
        self._is_tinted = False
        self._is_writing = False
        self._note = note
        self._pieces: list[str] = []
        self._neutral = NeutralStream()
        self._shown: list[str] = []
        self._is_over = False
        self._n_split = 0
        self._pushed = ""
        self._thoughts: tuple[Section, ...] = ()
        self._lines_of_text = GrowingLines()
        self._lines_of_thought = GrowingPlain()
        if text:
            self._push(text)
            self._end_text()

    @property
    def source(self) -> str:
        """The original text of the model."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def fences(self) -> tuple[Fence, ...]:
        """The code fences of the answer."""
        return tuple(fence for section in sections_of(self.source) for fence in fences_of(section.text))

    @property
    def is_tinted(self) -> bool:
        """Whether drafted text is highlighted."""
        return self._is_tinted

    def begin(self) -> None:
        """Generation starts, from the beginning or where the text ended."""
        text = self.source
        self._begin_text()
        self._push(text)
        self._is_writing, self._is_tinted, self._doing = True, False, WRITING
        self.alter()

    def show_rounds(self, rounds: tuple[ToolRound, ...]) -> None:
        """Show these calls of tools before the text."""
        self._calls.rounds, self._doing = rounds, WRITING
        self.alter()

    def restart(self, text: str) -> None:
        """The text so far belongs to a round of calls: go on with this text after it."""
        self._begin_text()
        self._push(text)
        self.alter()

    def show_doing(self, doing: str) -> None:
        """Say under the text what is being done meanwhile."""
        self._doing = doing
        self.alter()

    def grow(self, piece: str) -> None:
        """Append text; the transcript fetches the lines at its next draw."""
        self._push(piece)
        self._doing = WRITING
        self.alter()

    def finish(self, text: str, note: str) -> None:
        """Generation has ended: set the whole text, and the line under it."""
        if text != self.source:
            self._begin_text()
            self._push(text)
        self._end_text()
        self._is_writing, self._note = False, note
        self.alter()

    def forget(self) -> None:
        super().forget()
        self._lines_of_text.forget()
        self._lines_of_thought = GrowingPlain()

    def toggle_tint(self) -> None:
        """Switch between text with drafts highlighted and Markdown."""
        self._is_tinted = bool(self.runs) and not self._is_tinted
        self.alter()

    @property
    def is_folded(self) -> bool:
        self._split()
        return not all(map(self._is_shown, self._thoughts)) or (bool(self._calls.rounds) and not self._is_unfolded)

    def fold(self, *, is_folded: bool) -> None:
        self._split()
        if self._thoughts or self._calls.rounds:
            self._is_unfolded = not is_folded
            self.alter()

    def estimate(self, width: int) -> int:
        return estimated_lines(self.source, width) + 2 + 2 * self._calls.n_calls

    def draw(self, drawer: Drawer) -> list[Strip]:
        lines = self.sibling_lines(drawer)
        calls, places = self._calls.lines(drawer, is_open=self._is_unfolded is True)
        self.fold_lines = tuple(len(lines) + place for place in places)
        lines += calls
        if self._is_tinted:
            body = self._tinted(drawer)
        else:
            self._split()
            body = [*self._thought_lines(drawer, len(lines)), *self._lines_of_text.lines(drawer)]
        note = neutral(self._doing) if self._is_writing else self._note
        return [*lines, *body, *(drawer.plain(neutral(note), drawer.palette.muted) if note else [])]

    def _begin_text(self) -> None:
        self._pieces, self._neutral, self._shown = [], NeutralStream(), []
        self._is_over, self._n_split = False, 0
        self._restart_lines()
        self._thoughts, self._lines_of_thought = (), GrowingPlain()

    def _restart_lines(self) -> None:
        self._pushed, self._lines_of_text = "", GrowingLines()

    def _push(self, piece: str) -> None:
        self._pieces.append(piece)
        self._shown.append(self._neutral.push(piece))

    def _end_text(self) -> None:
        self._shown.append(self._neutral.finish())
        self._is_over = True

    def _split(self) -> None:
        """Separate thinking from answer. Passes on only new text, unless earlier text turned out to be a thought."""
        if len(self._shown) == self._n_split:
            return
        shown = "".join(self._shown)
        self._shown, self._n_split = [shown], 1
        sections = sections_of(shown)
        self._thoughts = tuple(section for section in sections if section.is_thought)
        text = next((section.text for section in sections if not section.is_thought), "")
        if not text.startswith(self._pushed):
            self._restart_lines()
        if self._is_over or self._pushed or not may_begin_thought(text):
            self._lines_of_text.push(text[len(self._pushed) :])
            self._pushed = text
        if self._is_over:
            self._lines_of_text.finish()

    def _is_shown(self, thought: Section) -> bool:
        """Whether a thought is unfolded: as toggled by the user, else by the setting ("fold": only while generated)."""
        if self._is_unfolded is not None:
            return self._is_unfolded
        return self._thinking == "show" or (self._thinking == "fold" and thought.is_open and self._is_writing)

    def _thought_lines(self, drawer: Drawer, n_before: int) -> list[Strip]:
        lines: list[Strip] = []
        for place, thought in enumerate(self._thoughts):
            is_shown, is_last = self._is_shown(thought), place == len(self._thoughts) - 1
            if self._thinking == "hide" and not (is_shown or thought.is_open):
                continue
            verb = "thinking" if thought.is_open and self._is_writing else "thought"
            told = f"{'▾' if is_shown else '▸'} {verb}, {counted(len(thought.text.split()), 'word')} (Alt+T)"
            self.fold_lines += (n_before + len(lines),)
            lines += drawer.plain(told, drawer.palette.muted)
            if is_shown and is_last:
                lines += self._lines_of_thought.lines(thought.text, drawer, drawer.palette.muted)
            elif is_shown:
                lines += drawer.plain(thought.text, drawer.palette.muted)
            lines.append(Strip.blank(0))
        return lines

    def _tinted(self, drawer: Drawer) -> list[Strip]:
        """The source text, with drafted parts coloured by draft source."""
        sources = sorted({source for _, source in self.runs if source is not None})
        styles = {source: f"{TINTS[place % len(TINTS)]} underline" for place, source in enumerate(sources)}
        text, legend, at, stream = Text(), Text("drafted by ", style=drawer.palette.muted), 0, NeutralStream()
        for n_characters, source in self.runs:
            piece = stream.push(self.source[at : at + n_characters])
            text.append(piece, style="" if source is None else styles[source])
            at += n_characters
        text.append(stream.push(self.source[at:]) + stream.finish())
        for source in sources:
            n_drafted = sum(count for count, drafter in self.runs if drafter == source)
            legend.append(f"{source} {100 * n_drafted / max(1, len(self.source)):.0f} % ", style=styles[source])
        if not sources:
            legend = Text("nothing of it was drafted", style=drawer.palette.muted)
        return [*drawer.text(text), *drawer.text(legend)]
