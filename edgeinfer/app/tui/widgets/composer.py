"""The composer: the text area for a message, with its attachments.

In: keys, pastes, files, input typed before the start. Out: messages: `Submitted`, `Command`, `Edited`, `Cancelled`,
`TakeBack`, `GoOn`. A submitted draft is removed; a receiver that cannot use it restores it with `put`. Knows neither
sessions nor the engine; functions passed in count tokens and check the length, in threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static, TextArea

from edgeinfer.app.chat.completion import Completion, begins_command
from edgeinfer.app.chat.enclosures import Enclosures, MessageDraft
from edgeinfer.app.chat.input_history import InputHistory
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.editor import edit_text
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.chips import Chips, CountTokens
from edgeinfer.app.tui.widgets.completion_list import CompletionList
from edgeinfer.app.tui.widgets.pasting import Pasting
from edgeinfer.app.tui.widgets.sending import SHORT_CHARACTERS, WaitingLine, WhyUnfit
from edgeinfer.app.tui.widgets.text_fields import DraftInput

SETTLED_S = 0.3


class Composer(Pasting):
    """A text area with completions above it, chips for attachments, and a line of queued prompts.

    All parts have automatic heights: next to a fixed height, Textual ignores a limit given as a share of the screen.
    """

    DEFAULT_CSS = """
    Composer {
        height: auto;
        & > #composer-mode { display: none; height: auto; max-height: 1; padding: 0 1; color: $text-warning; }
        & > #composer-mode.-filled { display: block; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="composer.send", priority=True),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", id="composer.newline", priority=True),
        Binding("up", "up", "Older input", id="composer.older", priority=True, show=False),
        Binding("down", "down", "Newer input", id="composer.newer", priority=True, show=False),
        Binding("tab", "complete", "Complete", id="composer.complete", priority=True, show=False),
        Binding("escape", "close", "Close", id="composer.close", priority=True, show=False),
        Binding("backspace", "remove_last", "Remove attachment", id="composer.remove", priority=True, show=False),
        Binding("ctrl+e", "editor", "Editor", id="composer.editor", priority=True),
    ]

    class Submitted(Message):
        """A message should be sent; the composer is already empty."""

        def __init__(self, text: str, attachments: tuple[Attachment, ...]) -> None:
            super().__init__()
            self.text = text
            self.attachments = attachments

    class Edited(Message):
        """The draft has changed, and has been unchanged since for a moment."""

        def __init__(self, text: str, attachments: tuple[Attachment, ...]) -> None:
            super().__init__()
            self.text = text
            self.attachments = attachments

    class Command(Message):
        """A command was entered: a draft that starts with a single /, passed whole with the /."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    class Cancelled(Message):
        """Escape ended the mode started by `put`; the previous draft is restored."""

    class TakeBack(Message):
        """The user takes back the last queued prompt: remove it from the queue and `put` it."""

    class GoOn(Message):
        """Enter on an empty draft: send the first queued prompt."""

    def __init__(
        self,
        *,
        base: Path | None = None,
        history: InputHistory | None = None,
        commands: Sequence[tuple[str, str]] = (),
        count_tokens: CountTokens | None = None,
        why_unfit: WhyUnfit | None = None,
        placeholder: str = "Ask anything · @ attach · / commands · F1 help",
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        base = base or Path.cwd()
        self._past = history or InputHistory()
        self._mode = ""
        self._before_mode: tuple[str, Enclosures] | None = None
        self._settling: Timer | None = None
        self._told = MessageDraft("")
        self._why_unfit = why_unfit
        self._draft = DraftInput(placeholder, self._past, base)
        self._list = CompletionList(base, commands)
        self._chips = Chips(base, count_tokens)
        self._mode_line = Static(id="composer-mode", markup=False)
        self._waiting = WaitingLine()

    def compose(self) -> ComposeResult:
        yield self._list
        yield self._waiting
        yield self._mode_line
        yield self._chips
        yield self._draft

    @property
    def n_tokens(self) -> int | None:
        """Tokens of the draft and its attachments, or None while unknown."""
        return self._chips.n_tokens

    def put(self, text: str, attachments: Iterable[Attachment] = (), mode: str = "") -> None:
        """Replace the draft. A `mode` is shown until the draft is sent or Escape restores the previous one."""
        self._stop_sending()
        if mode:
            if not self._mode:
                self._before_mode = (self._draft.text, self._chips.hold(Enclosures()))
            self._set_mode(mode)
        self._chips.hold_kept(text, attachments)
        self._draft.become(f"/{text}" if text.startswith("/") else text)  # it is a message, not a command
        self._leave_list()
        self.focus()

    def type_ahead(self, text: str) -> None:
        """Insert input typed before the start; all lines but the last are sent, unless it is long or has @paths."""
        if text:
            self._draft.call_later(self._type_ahead, text)

    def _type_ahead(self, text: str) -> None:
        if self._sending:
            self.set_timer(SETTLED_S, lambda: self._type_ahead(text))
            return
        *lines, last = [text] if "@" in text or len(text) > SHORT_CHARACTERS else text.split("\n")
        after = self._draft.text
        for line in lines:
            self._draft.become(line)
            self._send()
        self._draft.become(last + after)

    def keep_draft(self) -> None:
        """Add the draft to earlier inputs, as the app ends: Up brings it back in the next one."""
        if self._draft.text.strip():
            self._past.add(self._draft.text)

    def clear(self) -> None:
        """Clear the draft and leave the mode."""
        self._before_mode = None
        self._restore()

    def attach(self, path: Path) -> None:
        """Attach a file or folder. It is read in a thread; errors are shown as notices."""
        self._chips.attach(path)

    def attach_text(self, text: str, name: str) -> None:
        """Attach a text that is no file."""
        self._chips.add_pasted(text, name)

    def queued(self, texts: Sequence[str], *, is_held: bool = False) -> None:
        """Show the queued prompts; `is_held`: they wait until Enter sends the first one."""
        self._waiting.show(texts, is_held=is_held)

    def recount(self) -> None:
        """Recount all tokens, for a new model."""
        self._chips.recount()

    def action_editor(self) -> None:
        """Edit the draft in the user's editor."""
        edited = edit_text(self.app, self._draft.text)
        if edited.text is None:
            self.notify(neutral(edited.notice), severity="warning", markup=False)
        else:
            self._draft.become(edited.text)
        self._draft.focus()

    def focus(self, scroll_visible: bool = True) -> Composer:
        self._draft.focus(scroll_visible)
        return self

    def send(self) -> None:
        """Send the draft, like the Enter key."""
        self._draft.call_later(self._send)

    # keys

    def action_send(self) -> None:
        """Accept the highlighted completion, else send the draft. Runs after all earlier keys have been processed."""
        self._only_in_draft()
        self._draft.enter(self._send)

    def _send(self) -> None:
        self._catch_up()
        chosen = self._list.chosen
        if chosen is not None and self._accept(chosen) and not chosen.is_command:
            return
        text = self._draft.text
        if self._sending:
            return
        if not (text.strip() or self._chips.attachments or self._chips.busy):
            if self._waiting.n_waiting:
                self.post_message(self.GoOn())
            return
        if begins_command(text):
            self._leave_list()
            self._past.add(text)
            self._draft.become("")
            self.post_message(self.Command(text.strip()))
        else:
            self._begin_sending()

    def action_newline(self) -> None:
        """Insert a newline."""
        self._only_in_draft()
        self._draft.call_later(self._begin_line)

    def _begin_line(self) -> None:
        if not self._draft.read_only:
            self._draft.type("\n")

    def action_up(self) -> None:
        """The row above in the list, the last queued prompt, or an older input."""
        self._only_in_draft()
        if self._list.is_open:
            self._list.step(-1)
        elif not self._draft.at_top:
            raise SkipAction
        elif self._waiting.n_waiting and not self._draft.text and not self._mode:
            self.post_message(self.TakeBack())
        else:
            self._draft.older()
            self._leave_list()

    def action_down(self) -> None:
        """The row below in the list, or a newer input."""
        self._only_in_draft()
        if self._list.is_open:
            self._list.step(1)
        elif not self._draft.at_bottom or not self._draft.newer():
            raise SkipAction
        else:
            self._leave_list()

    def action_complete(self) -> None:
        """Accept the highlighted completion, or the first one if none is highlighted."""
        self._only_in_draft()
        if not self._list.is_open:
            raise SkipAction
        self._draft.call_later(self._complete)

    def _complete(self) -> None:
        self._catch_up()
        if self._list.chosen is None:
            self._list.step(1)
        if (chosen := self._list.chosen) is not None and not self._accept(chosen):
            self._leave_list()

    def action_close(self) -> None:
        """Close the list, cancel sending, return to the draft, or leave the mode: whichever applies first."""
        if self._list.is_open:
            self._leave_list()
        elif self._sending:
            self._stop_sending()
        elif self._chips.has_focus:
            self._draft.focus()
        elif self._mode:
            self._restore()
            self.post_message(self.Cancelled())
        else:
            raise SkipAction

    def action_remove_last(self) -> None:
        """At the beginning of the draft: remove the last attachment."""
        self._only_in_draft()
        start, end = self._draft.selection
        if not start == end == (0, 0) or self._draft.read_only or not self._chips.remove_last():
            raise SkipAction

    def _only_in_draft(self) -> None:
        if not self._draft.has_focus:
            raise SkipAction

    # messages of the parts

    @on(TextArea.Changed)
    def _text_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self._follow_cursor()
        if self._settling is not None:
            self._settling.stop()
        self._settling = self.set_timer(SETTLED_S, self._settle)

    @on(TextArea.SelectionChanged)
    def _cursor_moved(self, event: TextArea.SelectionChanged) -> None:
        event.stop()
        self._follow_cursor()

    @on(Chips.Unpacked)
    def _take_unpacked(self, unpacked: Chips.Unpacked) -> None:
        unpacked.stop()
        self._draft.type(unpacked.text)
        self._draft.focus()

    @on(Chips.Left)
    def _take_keyboard(self) -> None:
        self._draft.focus()

    @on(CompletionList.Picked)
    def _take_click(self) -> None:
        if (chosen := self._list.chosen) is not None:
            self._accept(chosen)
        self._draft.focus()

    # operations

    def _follow_cursor(self) -> None:
        row, column = self._draft.cursor_location
        self._list.follow(row, self._draft.document.get_line(row)[:column])

    def _catch_up(self) -> None:
        self._follow_cursor()
        self._list.catch_up()

    def _leave_list(self) -> None:
        """Close the list until another completion begins."""
        self._follow_cursor()
        self._list.close()

    def _accept(self, completion: Completion) -> bool:
        """Insert a completion into the draft. Returns False if it was there already."""
        (row, column), begin = self._draft.cursor_location, self._list.begin
        line = self._draft.document.get_line(row)
        insertion = completion.insertion
        if insertion.endswith(" ") and line[column : column + 1] == " ":
            insertion = insertion[:-1]
        if line[begin:column] == insertion.rstrip():
            return False
        done = self._draft.replace(insertion, (row, begin), (row, column), maintain_selection_offset=False)
        self._draft.move_cursor(done.end_location)
        self._follow_cursor()
        return True

    def _submit(self) -> None:
        text, attachments = self._draft.text, (self._fitted or self.draft).attachments
        self._past.add(text)
        self._restore()
        said = text.strip("\n")
        self.post_message(self.Submitted(said[1:] if said.startswith("//") else said, attachments))

    def _restore(self) -> None:
        """Leave the mode and restore the previous draft; without a mode, clear the draft."""
        self._stop_sending()
        text, enclosures = self._before_mode or ("", Enclosures())
        self._before_mode, self._last_paste = None, None
        self._set_mode("")
        self._draft.empty()
        self._draft.become(text)
        self._chips.hold(enclosures)
        self._leave_list()

    def _set_mode(self, mode: str) -> None:
        self._mode = mode
        self._mode_line.update(f"{neutral(mode)}: Escape cancels" if mode else "")
        self._mode_line.set_class(bool(mode), "-filled")

    def _settle(self) -> None:
        """The draft has been unchanged for SETTLED_S: count its tokens and read its files."""
        self._settling = None
        text = self._draft.text
        self._chips.follow(text)
        if self._sending:
            return  # its files are being read already
        if not begins_command(text) and ("@" in text or self._chips.attachments):
            self._chips.scan(text)
        else:
            self._tell()

    def _tell(self) -> None:
        """Post `Edited` if the draft differs from the last one posted."""
        now = self.draft
        if now != self._told and self._settling is None and not self._chips.busy:
            self._told = now
            self.post_message(self.Edited(now.text, now.attachments))
