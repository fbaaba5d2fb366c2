"""Text fields: a line, an area, a search field, a one-line prompt, and the growing field of a message.

In: keys, pastes, the input history. Out: Textual's own messages, `EntryLine.Entered`, `DraftInput.LongPaste` and
`DraftInput.FilePaste`. All of them accept the joiners inside multi-person emoji and inside Persian and Hindi words,
which Textual drops like other non-printing characters; pastes lose their control characters. Keys that come as fast as
no one types were pasted in a terminal that does not say so: their line ends send nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.reactive import reactive
from textual.timer import Timer
from textual.widgets import Input, Static, TextArea

from edgeinfer.app.chat.given_paths import given_media
from edgeinfer.app.chat.input_history import HistoryWalk, InputHistory
from edgeinfer.app.plain_text import harmless

JOINERS = frozenset("\u200c\u200d")
LONG_PASTE_CHARACTERS = 4000
PASTED_S = 0.02
"""Keys that follow each other within this time were pasted, in a terminal that does not mark pastes; 0: none were."""
JUST_NOW_S = 0.1
"""Enter waits for such a key if another key came this recently."""
STARTING_S = 2.0
"""In this time from the start on, fast keys were typed: they waited in the terminal while the app was busy."""


class Field(Input):
    """A single-line field."""

    cursor_blink = reactive(False, init=False)  # a blinking cursor would redraw twice a second

    async def _on_key(self, event: events.Key) -> None:
        if event.character in JOINERS:
            event.stop()
            event.prevent_default()
            self.insert_text_at_cursor(event.character)


class Area(TextArea):
    """A multi-line text area."""

    cursor_blink = reactive(False, init=False)

    async def _on_key(self, event: events.Key) -> None:
        if event.character in JOINERS and not self.read_only:
            event.stop()
            event.prevent_default()
            self.insert(event.character)


class SearchField(Field):
    """A single-line field without a frame; at the end of the text, Delete acts on the list below."""

    DEFAULT_CSS = """
    SearchField { height: 1; border: none; padding: 0 1; background: $surface; }
    SearchField:focus { border: none; }
    """

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Whether a key's action is available now."""
        if action == "delete_right" and self.cursor_at_end and self.selection.is_empty:
            return False
        return super().check_action(action, parameters)


class EntryLine(Horizontal):
    """A label and a text field."""

    DEFAULT_CSS = """
    EntryLine { display: none; height: 1; background: $surface; }
    EntryLine.-open { display: block; layout: horizontal; }
    EntryLine > Static { width: auto; padding: 0 1; color: $text-muted; }
    EntryLine > Input { width: 1fr; height: 1; border: none; padding: 0 1 0 0; background: $surface; }
    EntryLine > Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "cancel", id="entry.leave")]

    class Entered(Message):
        """A text was entered."""

        def __init__(self, what: str, text: str) -> None:
            super().__init__()
            self.what = what
            self.text = text

    class Left(Message):
        """The prompt was cancelled."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._asked = ""

    def compose(self) -> ComposeResult:
        """Label and field."""
        yield Static(markup=False)
        yield Field(compact=True)

    def ask(self, what: str, label: str, text: str) -> None:
        """Ask for a text; `what` is returned with it."""
        self._asked = what
        self.query_one(Static).update(f"{label}:")
        field = self.query_one(Input)
        field.value = " ".join(harmless(text).split())
        field.cursor_position = len(field.value)
        self.add_class("-open")
        field.focus()

    @property
    def is_open(self) -> bool:
        """Whether the prompt is shown."""
        return self.has_class("-open")

    def action_leave(self) -> None:
        """Cancel the prompt."""
        self.remove_class("-open")
        self.post_message(self.Left())

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.remove_class("-open")
        self.post_message(self.Entered(self._asked, event.value.strip()))

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()


class DraftInput(Area):
    """A text area that grows from one line to a third of the screen."""

    DEFAULT_CSS = """
    DraftInput {
        height: auto;
        min-height: 1;
        max-height: 33vh;
        border: none;
        border-left: outer $primary 50%;
        padding: 0 1;
        background: $surface;
        scrollbar-size-vertical: 1;
        &:focus { border: none; border-left: outer $primary; }
        & .text-area--cursor-line { background: transparent; }
    }
    """

    class LongPaste(Message):
        """A paste that was too long to be inserted."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class FilePaste(Message):
        """A paste that names images or sounds, as terminals do for files that are dropped on them."""

        def __init__(self, text: str, paths: Sequence[Path]) -> None:
            super().__init__()
            self.text = text
            self.paths = paths

    def __init__(self, placeholder: str, history: InputHistory, base: Path) -> None:
        """`base`: the folder that relative paths are in."""
        super().__init__(placeholder=placeholder, highlight_cursor_line=False)
        self._base = base
        self._walk = HistoryWalk(history)
        self._walked = ""  # text inserted from the history
        self._ready_s = -math.inf  # from then on, fast keys are pasted ones
        self._key_s = -math.inf  # when the last key was pressed
        self._held: tuple[Timer, Callable[[], None]] | None = None  # Enter, until it is known whether a key follows
        self._is_pasting = False  # keys follow each other as fast as no one types, and lines began among them

    def on_mount(self) -> None:
        self._ready_s = events.Event().time + STARTING_S

    def enter(self, send: Callable[[], None]) -> None:
        """Enter was pressed: call `send` after all earlier keys; among pasted ones, begin a line instead."""
        self.call_later(self._enter, send)

    def _enter(self, send: Callable[[], None]) -> None:
        now = events.Event().time  # by the clock of keys
        if not PASTED_S or now - self._key_s > JUST_NOW_S or self._key_s < self._ready_s:
            send()
        elif self._is_pasting:
            self.type("\n")
        elif self._held is not None:
            self._begin_pasted_line()
            self.type("\n")
        else:
            self._held = self.set_timer(PASTED_S, self._send_held), send

    async def _on_key(self, event: events.Key) -> None:
        is_fast = event.time - self._key_s < PASTED_S and event.time >= self._ready_s
        self._key_s = event.time
        if self._held is None:
            self._is_pasting = self._is_pasting and is_fast
        elif is_fast:
            self._begin_pasted_line()
        else:
            self._send_held()

    def _begin_pasted_line(self) -> None:
        """Begin a line where Enter was pressed."""
        if self._held is not None:
            self._held[0].stop()
        self._held, self._is_pasting = None, True
        self.type("\n")

    def _send_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held[0].stop()
            held[1]()

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.take_paste(event.text)

    def action_paste(self) -> None:
        """Paste text copied in the app."""
        self.take_paste(self.app.clipboard)

    def take_paste(self, text: str) -> None:
        """Insert pasted text without control characters.

        A long paste is posted as `LongPaste` instead, and one that names images or sounds as `FilePaste`.
        """
        if self.read_only:
            return
        text = plain(text)
        if paths := given_media(text, self._base):
            self.post_message(self.FilePaste(text, paths))
        elif len(text) > LONG_PASTE_CHARACTERS:
            self.post_message(self.LongPaste(text))
        elif text:
            self.type(text)

    def type(self, text: str) -> None:
        """Replace the selection with a text, and move the cursor to its end."""
        start, end = self.selection
        done = self.replace(text, start, end, maintain_selection_offset=False)
        self.move_cursor(done.end_location)

    def become(self, text: str) -> None:
        """Replace the whole text, with the cursor at the end; undo restores the previous text."""
        done = self.replace(plain(text), (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(done.end_location)

    def older(self) -> None:
        """Show the previous input; text edited since the last step counts as a new draft."""
        if self.text != self._walked:
            self._walk.reset()
        self._walk_to(self._walk.older(self.text))

    def newer(self) -> bool:
        """Show the next input, and finally the draft. Returns False if there is none."""
        return self.text == self._walked and self._walk_to(self._walk.newer())

    def empty(self) -> None:
        """Clear the text, and go back to the newest end of the history."""
        self._walk.reset()
        self.become("")

    def _walk_to(self, text: str | None) -> bool:
        if text is not None:
            self._walked = text
            self.become(text)
        return text is not None

    @property
    def at_top(self) -> bool:
        """Whether the cursor is on the first displayed line."""
        return self.navigator.is_first_wrapped_line(self.cursor_location)

    @property
    def at_bottom(self) -> bool:
        """Whether the cursor is on the last displayed line."""
        return self.navigator.is_last_wrapped_line(self.cursor_location)


def plain(text: str) -> str:
    """A text with \\n line endings and no control characters except tabs."""
    return harmless(text.replace("\r\n", "\n").replace("\r", "\n"))
