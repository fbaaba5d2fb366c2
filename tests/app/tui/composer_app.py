"""A composer to test, and what it tells: shared by the tests of writing and of attaching."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from textual import events, on
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll

from edgeinfer.app.chat.enclosures import MessageDraft
from edgeinfer.app.chat.input_history import InputHistory
from edgeinfer.app.tui.widgets.chips import CountTokens
from edgeinfer.app.tui.widgets.completion_list import CompletionList
from edgeinfer.app.tui.widgets.composer import Composer
from edgeinfer.app.tui.widgets.sending import WhyUnfit
from edgeinfer.app.tui.widgets.text_fields import DraftInput

COMMANDS = (("help", "show this"), ("model [NAME]", "switch the model"), ("temp [NUMBER]", "show or set"))


class ComposerApp(App[None]):
    """A composer under some text, and all that it told."""

    def __init__(
        self,
        base: Path,
        count_tokens: CountTokens | None = None,
        past: Sequence[str] = (),
        why_unfit: WhyUnfit | None = None,
    ) -> None:
        super().__init__()
        history = InputHistory()
        for text in past:
            history.add(text)
        self.composer = Composer(
            base=base, history=history, commands=COMMANDS, count_tokens=count_tokens, why_unfit=why_unfit
        )
        self.told: list[object] = []
        self.sent: list[MessageDraft] = []
        self.edits: list[MessageDraft] = []

    def compose(self) -> ComposeResult:
        yield VerticalScroll()
        yield self.composer

    def on_mount(self) -> None:
        self.composer.focus()

    @on(Composer.Submitted)
    def _submitted(self, message: Composer.Submitted) -> None:
        self.sent.append(MessageDraft(message.text, message.attachments))

    @on(Composer.Edited)
    def _edited(self, message: Composer.Edited) -> None:
        self.edits.append(MessageDraft(message.text, message.attachments))

    @on(Composer.Command)
    def _command(self, message: Composer.Command) -> None:
        self.told.append(message.line)

    @on(Composer.Cancelled)
    @on(Composer.TakeBack)
    def _other(self, message: Composer.Cancelled | Composer.TakeBack) -> None:
        self.told.append(type(message).__name__)

    @property
    def text(self) -> str:
        return self.composer.draft.text

    @property
    def names(self) -> list[str]:
        return [attachment.name for attachment in self.composer.draft.attachments]

    @property
    def rows(self) -> CompletionList:
        return self.query_one(CompletionList)

    @property
    def notices(self) -> list[str]:
        return [notice.message for notice in self._notifications]

    def paste(self, text: str) -> None:
        self.query_one(DraftInput).post_message(events.Paste(text))
