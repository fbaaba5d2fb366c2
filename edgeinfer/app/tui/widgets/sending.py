"""Sends a draft: reads the files it mentions, checks its length, and shows the prompts that are queued.

In: the draft, its chips, a function that says why a draft can never be answered. Out: a call of `_submit`, or a notice
with the reason, in which case the draft stays. Meanwhile the draft is read-only; Escape cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import on, work
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Static

from edgeinfer.app.chat.enclosures import MessageDraft
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.chips import Chips
from edgeinfer.app.tui.widgets.text_fields import DraftInput

SHORT_CHARACTERS = 500
"""Texts up to this length without attachments are sent without a check."""
WhyUnfit = Callable[[MessageDraft], str | None]


class Sending(Vertical):
    """Mixin of the composer: sending."""

    _draft: DraftInput
    _chips: Chips
    _why_unfit: WhyUnfit | None = None
    _sending = False
    _n_looks = 0

    class Looked(Message):
        """Result of a check in a thread: why the draft cannot be sent, or None."""

        def __init__(self, number: int, reason: str | None) -> None:
            super().__init__()
            self.number = number
            self.reason = reason

    @property
    def draft(self) -> MessageDraft:
        """The current draft."""
        return MessageDraft(self._draft.text, self._chips.attachments)

    def _begin_sending(self) -> None:
        """Send the draft once all files it mentions are read."""
        text = self._draft.text
        if "@" in text or self._chips.busy:
            self._sending = self._draft.read_only = True
            self._chips.scan(text, is_sent=True)
        else:
            self._look()

    def _stop_sending(self) -> None:
        self._sending = self._draft.read_only = False
        self._n_looks += 1  # results of running checks are ignored

    def _look(self) -> None:
        """Send the draft if it can be answered."""
        draft = self.draft
        if self._why_unfit is None or not (draft.attachments or len(draft.text) > SHORT_CHARACTERS):
            self._submit()
            return
        self._stop_sending()
        self._sending = self._draft.read_only = True
        self._look_at(self._why_unfit, draft, self._n_looks)

    @work(thread=True, group="look")
    def _look_at(self, why_unfit: WhyUnfit, draft: MessageDraft, number: int) -> None:
        self.post_message(self.Looked(number, why_unfit(draft)))

    @on(Looked)
    def _take_look(self, looked: Looked) -> None:
        looked.stop()
        if looked.number != self._n_looks or not self._sending:
            return
        self._stop_sending()
        if looked.reason is None:
            self._submit()
        else:
            self.notify(neutral(f"not sent: {looked.reason}"), severity="warning", markup=False, timeout=15)

    @on(Chips.Changed)
    def _chips_changed(self, changed: Chips.Changed) -> None:
        changed.stop()
        if self._sending and not self._chips.busy:
            self._stop_sending()
            if not changed.failed:
                self._look()
                return
        self._tell()

    def _submit(self) -> None:
        """Submit the draft; implemented by the composer."""

    def _tell(self) -> None:
        """Post the current draft; implemented by the composer."""


class WaitingLine(Static):
    """One line, however many prompts are queued."""

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
        """Show these prompts; the keys come first, because long prompts are truncated.

        is_held: no answer is running that would send them when it ends: Enter sends the first one.
        """
        self.n_waiting = len(texts)
        if texts:
            verb = "waits" if len(texts) == 1 else "wait"
            keys = "Enter sends, Up takes back" if is_held else "Up takes back"
            self.update(f"{len(texts)} {verb} ({keys}): {' '.join(neutral(texts[-1]).split())}")
        self.set_class(bool(texts), "-filled")
