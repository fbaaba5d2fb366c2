"""Sending a draft: what it mentions is read, and what it takes is looked at, before it leaves the composer.

In: the draft, its chips, a function that knows why a draft could never be answered. Out: `_submit` is called, or a
notice says why not and the draft stays. Meanwhile the draft cannot be changed; Escape gives it up.
"""

from __future__ import annotations

from collections.abc import Callable

from textual import on, work
from textual.containers import Vertical
from textual.message import Message

from edgeinfer.app.enclosures import MessageDraft
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.chips import Chips
from edgeinfer.app.tui.widgets.draft_input import DraftInput

SHORT_CHARACTERS = 500
"""A text so short, with nothing attached, is sent without a look at what it takes."""
WhyUnfit = Callable[[MessageDraft], str | None]


class Sending(Vertical):
    """Part of the composer."""

    _draft: DraftInput
    _chips: Chips
    _why_unfit: WhyUnfit | None = None
    _sending = False
    _n_looks = 0

    class Looked(Message):
        """What a thread says to a draft: why it cannot be sent, or nothing."""

        def __init__(self, number: int, reason: str | None) -> None:
            super().__init__()
            self.number = number
            self.reason = reason

    @property
    def draft(self) -> MessageDraft:
        """What stands there now."""
        return MessageDraft(self._draft.text, self._chips.attachments)

    def _begin_sending(self) -> None:
        """Send the draft as soon as everything that it mentions is read."""
        text = self._draft.text
        if "@" in text or self._chips.busy:
            self._sending = self._draft.read_only = True
            self._chips.scan(text, is_sent=True)
        else:
            self._look()

    def _stop_sending(self) -> None:
        self._sending = self._draft.read_only = False
        self._n_looks += 1  # what is being looked at is not sent any more

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
        """Let the draft go."""

    def _tell(self) -> None:
        """Say what the draft is now."""
