"""Asking and answering: sends or queues questions, shows answers as they are generated, and saves them.

In: messages of the composer and of the engine thread. Out: jobs for the engine, messages in the chat, text on the
screen. An answer is saved as it grows, and kept however it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.actions import SkipAction
from textual.widgets import TextArea

from edgeinfer.app.sessions.records import Figures, KeptMessage, State
from edgeinfer.app.sessions.written_beside import WrittenBeside
from edgeinfer.app.tui.actions.showing import ShowingActions, note_of
from edgeinfer.app.tui.engine_messages import Answered, AnswerJob, Grown, Notified
from edgeinfer.app.tui.screens.chat_parts import ChatParts, Prompted, Writing
from edgeinfer.app.tui.widgets.composer import Composer
from edgeinfer.errors import EdgeInferError


class Queueing(ChatParts):
    """Mixin of the chat screen: the queue of questions waiting for the running answer."""

    def queue(self, prompted: Prompted) -> None:
        """Queue a question."""
        self.prompted.append(prompted)
        self.show_prompted()

    def show_prompted(self) -> None:
        """Show the queued questions and how to send them."""
        self.composer.queued([prompted.text for prompted in self.prompted], is_held=self.writing is None)

    def on_composer_take_back(self, event: Composer.TakeBack) -> None:
        """The user takes back the last queued question."""
        event.stop()
        self.action_unqueue()

    def action_unqueue(self, argument: str = "") -> None:
        """Put the last queued question back into the composer."""
        if not self.prompted:
            self.tell("no question waits")
            return
        prompted = self.prompted.pop()
        self.show_prompted()
        self.composer.put(prompted.text, prompted.attachments)


if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options

EDITING = "editing a question: Enter sends it as a new branch"


class AnsweringActions(ShowingActions, Queueing):
    """Mixin of the chat screen: asks questions and shows answers."""

    async def on_composer_submitted(self, event: Composer.Submitted) -> None:
        """Send a question: now, or queued until the running request is done."""
        if self.edited is not None and self.is_busy():  # a request that started after the edit began
            self.composer.put(event.text, event.attachments, EDITING)
            return
        edited, self.edited = self.edited, None
        if edited is not None:
            await self.ask_instead(edited, Prompted(event.text, event.attachments))
        elif self.writing is not None:
            self.queue(Prompted(event.text, event.attachments))
        else:
            await self.ask(Prompted(event.text, event.attachments))

    async def ask(self, prompted: Prompted) -> None:
        """Ask a question at the end of the branch."""
        try:
            question, answer = self.chat.ask(prompted.text, prompted.attachments, self.model_name)
        except EdgeInferError as error:
            self.composer.put(prompted.text, prompted.attachments)
            self.tell(str(error), is_error=True)
            return
        await self.transcript.add(self.question_entry(question))
        await self.write(answer, before="")

    async def ask_instead(self, number: int, prompted: Prompted) -> None:
        """Ask a new version of a question of the branch, as its sibling."""
        try:
            _, answer = self.chat.ask_instead(number, prompted.text, prompted.attachments, self.model_name)
        except EdgeInferError as error:
            self.composer.put(prompted.text, prompted.attachments)
            self.tell(str(error), is_error=True)
            return
        await self.show_branch(without=answer.number)
        await self.write(answer, before="")

    async def write(self, answer: KeptMessage, before: str) -> None:
        """Start or continue generating an answer, in its existing transcript entry or a new one."""
        number = self.chat.number
        assert number is not None
        widget = self.transcript.answer(answer.number)
        if widget is None:
            widget = self.answer_entry(answer)
            widget.show_siblings(*self.chat.place(answer.number))
            await self.transcript.add(widget)
        widget.begin()
        job = AnswerJob(self.new_job(), number, tuple(self.chat.prompt(answer.number)), self.answer_options(), before)
        self.writing = Writing(job.number, answer.number, before)
        self.transcript.follow()
        self.show_title()
        self.show_prompted()
        self.engine.give(job)

    def answer_options(self) -> Options:
        """Options of the next answer. With a fixed seed, another answer to the same question uses the next seed."""
        options = self.state.tuning.answer_options
        modules, model = self.state.modules, self.state.model
        if modules.texts and model is not None:
            options["modules"] = modules.names(model.modules)
        seed = options.get("seed")
        if seed is not None and (places := self.chat.places):
            options["seed"] = seed + places[-1].index - 1
        return options

    async def on_grown(self, event: Grown) -> None:
        """New text has arrived: fetch it at the next draw instead of piece by piece, except for the first piece."""
        event.stop()
        if self.writing is not None and not self.writing.pieces:
            self.take_text()
        else:
            self.transcript.draw_soon(self.take_text)

    def take_text(self) -> None:
        """Show and save the new text, and update the meters."""
        writing = self.writing
        text = self.engine.text_buffer.take(None if writing is None else writing.job)
        if writing is None or not text:
            return
        writing.pieces.append(text)
        if not writing.is_summary:
            self.state.autosave.note(writing.message, writing.text)
        if (widget := self.transcript.answer(writing.message)) is not None:
            widget.grow(text)
        self.meter_answer()

    async def on_answered(self, event: Answered) -> None:
        """An answer is finished: save it, show its final form, and send the next queued question."""
        event.stop()
        writing = self.writing
        if writing is None or writing.job != event.job:
            return
        self.take_text()
        self.writing = None
        if writing.is_summary:
            await self.end_summary(event)
        else:
            self.end_answer(writing, event)
        self.tell_all(event.notices)
        self.show_figures(event.figures)
        self.look_at_context()
        await self.go_on(is_whole=event.state in ("whole", "cut"))

    async def on_composer_go_on(self, event: Composer.GoOn) -> None:
        """Send the next queued question, unless an answer is being generated."""
        event.stop()
        if self.writing is None and self.prompted:
            await self.ask_next()

    async def go_on(self, *, is_whole: bool) -> None:
        """Send the next queued question, unless the answer before it was stopped or failed."""
        if self.prompted and is_whole:
            await self.ask_next()
        elif self.prompted:
            self.show_prompted()
            self.tell("what waits is not sent by itself now: Enter in an empty line sends it, Up takes it back")

    async def ask_next(self) -> None:
        """Send the first queued question."""
        following = self.prompted.pop(0)
        await self.ask(following)
        self.show_prompted()

    def end_answer(self, writing: Writing, event: Answered) -> None:
        """Save an answer and show its final form."""
        message = self.keep_answer(writing.message, event.text, event.state, event.figures)
        widget = self.transcript.answer(writing.message)
        if widget is not None:
            widget.runs = event.runs
            why = f": {event.notices[0]}" if event.state == "failed" and event.notices else ""
            widget.finish(event.text, note_of(message) + why)

    def keep_answer(
        self, number: int, text: str, state: State, figures: Figures | None, beside: WrittenBeside | None = None
    ) -> KeptMessage:
        """Save the final state of an answer. If saving fails, the text stays on the screen and autosave retries it."""
        self.state.autosave.forget(number)
        try:
            return self.chat.finish(number, text, state, figures, beside)
        except EdgeInferError as error:
            self.state.autosave.note(number, text)
            self.tell(f"this answer is not saved yet: {error}", is_error=True)
            return self.chat.message(number)

    async def end_summary(self, event: Answered) -> None:
        """Handle the end of a compaction; implemented by the mixin that starts compactions."""

    def on_notified(self, event: Notified) -> None:
        """Show a notice from the engine."""
        event.stop()
        self.tell(event.text, is_error=event.is_error)

    def action_stop(self) -> None:
        """Stop the answer; its text so far is kept."""
        self.engine.stop()

    def action_interrupt(self) -> None:
        """Stop the answer; if none is running, leave the key to copying the selection."""
        if self.writing is not None:
            self.engine.stop()
        elif self.get_selected_text() or (isinstance(self.focused, TextArea) and self.focused.selected_text):
            raise SkipAction
        else:
            self.tell("Ctrl+Q leaves; Ctrl+C stops an answer, or copies what is selected")

    async def action_regen(self, argument: str = "") -> None:
        """Generate another answer to the selected question, or to the last one."""
        if self.is_busy():
            return
        answer = self.chat.answer_again(self.model_name, self.transcript.selected)
        await self.show_branch(without=answer.number)
        await self.write(answer, before="")

    async def action_continue(self, argument: str = "") -> None:
        """Continue the last answer from where it ended."""
        if self.is_busy():
            return
        answer = self.chat.continue_answer()
        await self.write(answer, before=answer.text)
