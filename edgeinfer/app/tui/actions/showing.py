"""Showing the branch of the open chat: its messages, its title, how full its context is.

In: the chat. Out: entries of the transcript, the line at the top, the bar. Changes nothing but what is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual import work

from edgeinfer.app.sessions.chat import Place
from edgeinfer.app.sessions.records import Attachment, KeptMessage
from edgeinfer.app.tui.actions.notes import note_of
from edgeinfer.app.tui.screens.chat_parts import ChatParts
from edgeinfer.app.tui.widgets.answer import Answer
from edgeinfer.app.tui.widgets.entry import Entry
from edgeinfer.app.tui.widgets.question import Question
from edgeinfer.errors import EdgeInferError


class Showing(ChatParts):
    """Part of the chat screen."""

    def question_entry(self, message: KeptMessage) -> Question:
        """A question as the transcript shows it."""
        return Question(message.number, message.text, message.attachments)

    def answer_entry(self, message: KeptMessage) -> Answer:
        """An answer as the transcript shows it."""
        thinking = self.desk.tuning.settings.face.thinking
        return Answer(message.number, message.text, note=note_of(message), thinking=thinking)

    def entry_of(self, place: Place) -> Entry:
        """A message of the branch as the transcript shows it."""
        message = place.message
        entry: Entry = self.question_entry(message) if message.role == "user" else self.answer_entry(message)
        entry.show_siblings(place.index, place.n_siblings)
        return entry

    async def show_branch(self, *, without: int | None = None, at: int | None = None) -> None:
        """Show the branch, but not the message `without`; its end, or the message `at`."""
        places: Sequence[Place] = [place for place in self.chat.places if place.message.number != without]
        await self.transcript.show([self.entry_of(place) for place in places])
        if at is not None:
            self.transcript.scroll_to_message(at)
        self.show_title()
        self.look_at_context()

    def show_title(self) -> None:
        """The chat's title and the model, or how far opening one is."""
        model = self.desk.model
        shown = self.desk.opening_text or ("no model" if model is None else model.facts.name)
        self.title_bar.show(self.chat.title or "new chat", shown)

    def look_at_context(self) -> None:
        """Count what the context holds, with the draft, unless an answer is in the making."""
        if self.writing is None and self.desk.model is not None:
            draft = self.composer.draft
            self.count_context(draft.text, draft.attachments)

    @work(thread=True, exclusive=True, group="context")
    def count_context(self, draft: str, attachments: tuple[Attachment, ...]) -> None:
        from edgeinfer.app.context_use import context_use
        from edgeinfer.app.sessions.conversation import with_attachments

        model = self.desk.model
        if model is None:
            return
        text = with_attachments(draft, attachments) if draft or attachments else ""
        try:
            messages = self.chat.prompt()
            use = context_use(model, messages, text, self.desk.tuning.settings.generation.max_tokens)
            n_used = model.prompts.n_tokens(messages) if messages else 0
        except EdgeInferError:  # a draft that cannot be sent at all is told when it is sent
            return
        n_draft = max(0, use.n_prompt + use.n_dropped_tokens - n_used) if text else 0
        self.app.call_from_thread(self.context_bar.show, n_used, n_draft, use.n_context, use.n_dropped_messages)

    def is_busy(self) -> bool:
        """Whether an answer is in the making, which is told."""
        if self.writing is not None:
            self.tell("an answer is being written; Escape stops it")
        return self.writing is not None
