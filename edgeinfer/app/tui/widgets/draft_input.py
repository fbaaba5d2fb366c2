"""The text area of the composer: grows with its text, and takes only harmless text.

In: keys, pastes, the history of inputs. Out: text, and a message for a paste that is too long to be shown. Knows
nothing of what is done with the text.
"""

from __future__ import annotations

from textual import events
from textual.message import Message

from edgeinfer.app.answer_output import harmless
from edgeinfer.app.input_history import HistoryWalk, InputHistory
from edgeinfer.app.tui.widgets.text_fields import Area

LONG_PASTE_CHARACTERS = 4000


class DraftInput(Area):
    """A text area of one line to a third of the screen."""

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
        """A paste that was not put into the text, for it is long."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, placeholder: str, history: InputHistory) -> None:
        super().__init__(placeholder=placeholder, highlight_cursor_line=False)
        self.cursor_blink = False  # a blinking cursor draws twice a second for nothing
        self._walk = HistoryWalk(history)
        self._walked = ""  # what the walk has put here

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.take_paste(event.text)

    def action_paste(self) -> None:
        """Paste what was copied in the app."""
        self.take_paste(self.app.clipboard)

    def take_paste(self, text: str) -> None:
        """Put a pasted text at the cursor, without control characters; a long one is only told."""
        if self.read_only:
            return
        text = plain(text)
        if len(text) > LONG_PASTE_CHARACTERS:
            self.post_message(self.LongPaste(text))
        elif text:
            self.type(text)

    def type(self, text: str) -> None:
        """Put a text in the place of the selection, and the cursor after it."""
        start, end = self.selection
        done = self.replace(text, start, end, maintain_selection_offset=False)
        self.move_cursor(done.end_location)

    def become(self, text: str) -> None:
        """Have another text, with the cursor at its end; undo brings the one before back."""
        done = self.replace(plain(text), (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(done.end_location)

    def older(self) -> None:
        """Have the input before; one that was changed since is a draft of its own."""
        if self.text != self._walked:
            self._walk.reset()
        self._walk_to(self._walk.older(self.text))

    def newer(self) -> bool:
        """Have the input after, at last the draft; whether there was one."""
        return self.text == self._walked and self._walk_to(self._walk.newer())

    def empty(self) -> None:
        """Have no text, and stand after the newest input."""
        self._walk.reset()
        self.become("")

    def _walk_to(self, text: str | None) -> bool:
        if text is not None:
            self._walked = text
            self.become(text)
        return text is not None

    @property
    def at_top(self) -> bool:
        """Whether nothing of the text is above the cursor's line as it is shown."""
        return self.navigator.is_first_wrapped_line(self.cursor_location)

    @property
    def at_bottom(self) -> bool:
        """Whether nothing of the text is below the cursor's line as it is shown."""
        return self.navigator.is_last_wrapped_line(self.cursor_location)


def plain(text: str) -> str:
    """A text with line ends of one kind and no other control characters than tabs."""
    return harmless(text.replace("\r\n", "\n").replace("\r", "\n"))
