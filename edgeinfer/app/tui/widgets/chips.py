"""The line of attachments of the draft: names, sizes, token counts.

In: the draft's text, paths, pasted texts. Out: attachments, and a message when they change. Files are read and tokens
counted in threads, one text at a time. Keyboard: Shift+Tab from the draft, left and right, Delete. Does not know the
text area.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from edgeinfer.app.chat.attachments import Attached, attach, mentions
from edgeinfer.app.chat.enclosures import (
    PASTED,
    Countable,
    Enclosure,
    Enclosures,
    TokenCounts,
    chip_text,
    tokens_text,
)
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.errors import EdgeInferError

ROWS_CAP = 2
NOT_SENT = "Nothing was sent; to say it as text, put it in `backticks`"
CountTokens = Callable[[Countable], int | None]


class Chips(Static, can_focus=True):
    """One chip per attachment; hidden without any."""

    DEFAULT_CSS = """
    Chips {
        display: none;
        height: auto;
        max-height: 2;
        padding: 0 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        color: $text-muted;
        &.-filled { display: block; }
        &:focus { color: $text; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "choose(-1)", "Previous", id="chips.previous", show=False),
        Binding("right", "choose(1)", "Next", id="chips.next", show=False),
        Binding("delete,backspace,ctrl+x", "drop", "Remove", id="chips.remove"),
        Binding("enter", "unpack", "Into the text, or show", id="chips.unpack", show=False),
    ]

    class Changed(Message):
        """The attachments have changed, or all pending files are read. `failed`: some could not be read."""

        def __init__(self, failed: bool = False) -> None:
            super().__init__()
            self.failed = failed

    class Unpacked(Message):
        """A pasted text should be inserted into the draft."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Viewed(Message):
        """An attached image should be shown alone."""

        def __init__(self, attachment: Attachment) -> None:
            super().__init__()
            self.attachment = attachment

    class Left(Message):
        """The last chip was removed, so the focus must move elsewhere."""

    class Read(Message):
        """Result of a read in a thread: each path with its contents, or with the reason why it could not be read."""

        def __init__(self, held: Enclosures, read: list[tuple[Path, Attached | str]]) -> None:
            super().__init__()
            self.held = held  # those of the draft that started the read; the draft may have changed since
            self.read = read
            self.scan_number = 0  # 0 for a path attached explicitly
            self.is_sent = False  # the draft is to be sent once it is read
            self.named: list[Path] = []  # all paths mentioned in the draft

    class Counted(Message):
        """The token count of a text, an image or a sound, from a thread."""

        def __init__(self, counts: TokenCounts, text: Countable, n_tokens: int | None) -> None:
            super().__init__()
            self.counts = counts  # the counts that were requested; they may belong to a previous model
            self.text = text
            self.n_tokens = n_tokens

    def __init__(self, base: Path, count_tokens: CountTokens | None) -> None:
        super().__init__(markup=False)
        self._base = base
        self._count_function = count_tokens
        self._counting = False
        self._counts = TokenCounts()
        self._held = Enclosures()
        self._draft_text = ""
        self._chosen = 0
        self._scan_number = 0
        self._is_scanning = False  # for the draft as it is now
        self._n_reading = 0

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """All attachments."""
        return self._held.attachments

    @property
    def enclosures(self) -> tuple[Enclosure, ...]:
        """All attachments, as they were added."""
        return tuple(self._held.items)

    @property
    def busy(self) -> bool:
        """Whether files are still being read."""
        return self._is_scanning or self._n_reading > 0

    @property
    def n_tokens(self) -> int | None:
        """Tokens of the draft and all attachments, or None while unknown."""
        return self._counts.of(self._texts())

    def hold(self, enclosures: Enclosures) -> Enclosures:
        """Replace the attachments. Returns the previous ones."""
        before, self._held = self._held, enclosures
        self._scan_number += 1  # pending scans belong to the previous draft
        self._is_scanning = False
        self.refresh_chips()
        return before

    def hold_kept(self, text: str, attachments: Iterable[Attachment]) -> None:
        """Hold the attachments of an earlier message that has this text."""
        kept = Enclosures()
        kept.add_kept(attachments)
        if kept.items:
            kept.refused.update(mentions(text, self._base, missing=True))  # they are among the attachments already
        self.hold(kept)

    def scan(self, text: str, *, is_sent: bool = False) -> None:
        """Attach the files mentioned in a text, and drop those no longer mentioned; `Changed` follows.

        is_sent: the text is complete, so names of missing files are reported as mistakes.
        """
        self._scan_number += 1
        self._is_scanning = True
        held = {item.path for item in self._held.items if item.path is not None}
        self._scan(text, held | self._held.refused, self._scan_number, self._held, is_sent)

    def attach(self, path: Path) -> None:
        """Attach a file or folder; `Changed` follows."""
        self._n_reading += 1
        self._read_path(path, self._held)

    def holds(self, path: Path) -> bool:
        """Whether a path is attached."""
        return any(item.path == self._base / path for item in self._held.items)

    def add_pasted(self, text: str, name: str = PASTED) -> Enclosure:
        """Attach a text that is no file."""
        item = self._held.add_pasted(text, name)
        self._tell()
        return item

    def remove_item(self, item: Enclosure) -> None:
        """Remove an attachment."""
        self._held.remove(item)
        self._tell()
        if self.has_focus and not self._held.items:
            self.post_message(self.Left())

    def remove_last(self) -> bool:
        """Remove the last attachment. Returns False if there was none."""
        if not self._held.items:
            return False
        self.remove_item(self._held.items[-1])
        return True

    def follow(self, text: str) -> None:
        """Include the tokens of the draft's text in the count."""
        self._draft_text = text
        self.refresh_chips()

    def recount(self) -> None:
        """Recount all tokens."""
        self._counts = TokenCounts()
        self.refresh_chips()

    def refresh_chips(self) -> None:
        """Show the attachments, and count tokens that are still unknown."""
        self._chosen = max(0, min(self._chosen, len(self._held.items) - 1))
        self.set_class(bool(self._held.items), "-filled")
        if self._held.items:
            self._draw()
            self._count_next()

    def on_focus(self) -> None:
        self._chosen = max(0, len(self._held.items) - 1)
        self._draw()

    def on_blur(self) -> None:
        self._draw()

    def action_choose(self, step: int) -> None:
        """Select the next or previous chip."""
        if self._held.items:
            self._chosen = (self._chosen + step) % len(self._held.items)
            self._draw()

    def action_drop(self) -> None:
        """Remove the selected attachment."""
        if self._held.items:
            self.remove_item(self._held.items[self._chosen])

    def action_unpack(self) -> None:
        """Move the selected pasted text into the draft; show the selected image alone."""
        item = self._held.items[self._chosen] if self._held.items else None
        if item is not None and item.origin == "pasted":
            self.remove_item(item)
            self.post_message(self.Unpacked(item.attachments[0].text))
        elif item is not None and len(item.attachments) == 1 and item.attachments[0].image is not None:
            self.post_message(self.Viewed(item.attachments[0]))

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        """Pack the chips into rows without breaking any, and show the rows around the selected one."""
        counts = None if self._count_function is None else self._counts.known
        head = Content("" if counts is None else f"{tokens_text(self.n_tokens)} in all  ")
        rows, row_of_chosen = [Content("")], 0
        width = max(1, self.content_size.width)
        for number, item in enumerate(self._held.items):
            text = f"+ {neutral(chip_text(item, counts))}"
            chip = Content.styled(text, "reverse" if self.has_focus and number == self._chosen else "")
            room = width - head.cell_length if len(rows) == 1 else width
            if rows[-1] and rows[-1].cell_length + chip.cell_length > room:
                rows.append(Content(""))
            rows[-1] += chip + Content("  ")
            row_of_chosen = len(rows) - 1 if number == self._chosen or not self.has_focus else row_of_chosen
        first = max(0, row_of_chosen - ROWS_CAP + 1)
        shown = rows[first : first + ROWS_CAP]
        self.update(Content("\n").join([head + shown[0], *shown[1:]]))

    def _tell(self, failed: bool = False) -> None:
        self.refresh_chips()
        self.post_message(self.Changed(failed))

    def _texts(self) -> list[Countable]:
        return [self._draft_text, *(attachment.contents for attachment in self._held.attachments)]

    @work(thread=True, group="read")
    def _scan(self, text: str, known: set[Path], number: int, held: Enclosures, is_sent: bool) -> None:
        named = mentions(text, self._base, missing=is_sent)
        message = self.Read(held, [(path, _read(path, self._base)) for path in named if path not in known])
        message.scan_number, message.named, message.is_sent = number, named, is_sent
        self.post_message(message)

    @work(thread=True, group="read")
    def _read_path(self, path: Path, held: Enclosures) -> None:
        self.post_message(self.Read(held, [(self._base / path, _read(path, self._base))]))

    @on(Read)
    def _take_read(self, message: Read) -> None:
        message.stop()
        held, given = message.held, message.scan_number == 0
        if given:
            self._n_reading -= 1
        elif message.scan_number == self._scan_number:
            self._is_scanning = False
            held.keep_mentioned(message.named)
        else:
            return
        failed = False
        for path, attached in message.read:
            if isinstance(attached, str):
                failed = True
                if given or message.is_sent or held.failed.get(path) != attached:
                    self._tell_failed(attached, message.is_sent)
                held.failed[path] = attached
                continue
            held.add(path, attached, "added" if given else "mention")
            for notice in attached.notices:
                self.notify(neutral(notice), markup=False)
        self._tell(failed)

    def _tell_failed(self, reason: str, is_sent: bool) -> None:
        hint = f". {NOT_SENT}" if is_sent else ""
        self.notify(neutral(f"{reason}{hint}"), severity="warning", markup=False)

    def _count_next(self) -> None:
        text = self._counts.missing(self._texts())
        if text is not None and self._count_function is not None and not self._counting:
            self._counting = True
            self._count(self._count_function, self._counts, text)

    @work(thread=True, group="count")
    def _count(self, count_tokens: CountTokens, counts: TokenCounts, text: Countable) -> None:
        try:
            n_tokens = count_tokens(text)
        except EdgeInferError:
            n_tokens = None  # no model is open that reads it
        self.post_message(self.Counted(counts, text, n_tokens))

    @on(Counted)
    def _take_count(self, counted: Counted) -> None:
        counted.stop()
        self._counting = False
        counted.counts.known[counted.text] = counted.n_tokens
        self.refresh_chips()


def _read(path: Path, base: Path) -> Attached | str:
    try:
        return attach(path, base)
    except EdgeInferError as error:
        return str(error)
