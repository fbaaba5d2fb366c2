"""The text area of the composer: grows with its text, and filters control characters out of pasted text.

In: keys, pastes, the input history. Out: text, and a message for a paste that is too long to insert. Knows nothing of
what is done with the text.
"""

from __future__ import annotations

from textual import events
from textual.message import Message

from edgeinfer.app.answer_output import harmless
from edgeinfer.app.input_history import HistoryWalk, InputHistory
from edgeinfer.app.tui.widgets.text_fields import Area

LONG_PASTE_CHARACTERS = 4000


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

    def __init__(self, placeholder: str, history: InputHistory) -> None:
        super().__init__(placeholder=placeholder, highlight_cursor_line=False)
        self.cursor_blink = False  # a blinking cursor would redraw twice a second
        self._walk = HistoryWalk(history)
        self._walked = ""  # text inserted from the history

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.take_paste(event.text)

    def action_paste(self) -> None:
        """Paste text copied in the app."""
        self.take_paste(self.app.clipboard)

    def take_paste(self, text: str) -> None:
        """Insert pasted text without control characters; a long paste is posted as `LongPaste` instead."""
        if self.read_only:
            return
        text = plain(text)
        if len(text) > LONG_PASTE_CHARACTERS:
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
