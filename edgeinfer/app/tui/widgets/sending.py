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

from edgeinfer.app.chat.enclosures import Enclosure, FittedDraft, MessageDraft
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.widgets.chips import Chips
from edgeinfer.app.tui.widgets.text_fields import DraftInput

SHORT_CHARACTERS = 500
"""Texts up to this length without attachments are sent without a check."""
WhyUnfit = Callable[[MessageDraft], str | None]
Fit = Callable[[MessageDraft, tuple[Enclosure, ...]], FittedDraft]
"""Fits a draft to the context before it is sent."""


class Sending(Vertical):
    """Mixin of the composer: sending."""

    _draft: DraftInput
    _chips: Chips
    _why_unfit: WhyUnfit | None = None
    fit: Fit | None = None
    """In place of `why_unfit`, which only refuses."""
    always_fits = False
    """Whether drafts without attachments are fitted, too."""
    _fitted: MessageDraft | None = None
    """The draft as it is sent, if that is not what is seen."""
    _sending = False
    _n_looks = 0

    class Looked(Message):
        """Result of a check in a thread."""

        def __init__(self, number: int, found: FittedDraft) -> None:
            super().__init__()
            self.number = number
            self.found = found

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
        draft, why_unfit = self.draft, self._why_unfit
        is_plain = not (draft.attachments or len(draft.text) > SHORT_CHARACTERS)
        if (self.fit is None and why_unfit is None) or (is_plain and not self.always_fits):
            self._submit()
            return
        self._stop_sending()
        self._sending = self._draft.read_only = True
        self._look_at(self.fit or _refusing(why_unfit), draft, self._chips.enclosures, self._n_looks)

    @work(thread=True, group="look")
    def _look_at(self, fit: Fit, draft: MessageDraft, enclosures: tuple[Enclosure, ...], number: int) -> None:
        self.post_message(self.Looked(number, fit(draft, enclosures)))

    @on(Looked)
    def _take_look(self, looked: Looked) -> None:
        looked.stop()
        if looked.number != self._n_looks or not self._sending:
            return
        self._stop_sending()
        found = looked.found
        for notice in found.notices:
            self.notify(neutral(notice), markup=False, timeout=10)
        if found.reason is None:
            self._fitted = found.draft
            self._submit()
            self._fitted = None
        else:
            self.notify(neutral(f"not sent: {found.reason}"), severity="warning", markup=False, timeout=15)
            self._tell()

    @on(Chips.Changed)
    def _chips_changed(self, changed: Chips.Changed) -> None:
        changed.stop()
        if self._sending and (changed.failed or not self._chips.busy):
            self._stop_sending()
            if not changed.failed:
                self._look()
                return
        self._tell()

    def _submit(self) -> None:
        """Submit the draft; implemented by the composer."""

    def _tell(self) -> None:
        """Post the current draft; implemented by the composer."""


def _refusing(why_unfit: WhyUnfit | None) -> Fit:
    """A check that changes nothing."""

    def fit(draft: MessageDraft, enclosures: tuple[Enclosure, ...]) -> FittedDraft:
        return FittedDraft(draft, None if why_unfit is None else why_unfit(draft))

    return fit


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
