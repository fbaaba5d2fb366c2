"""Shows the branch of the open chat: its messages, its title, how full its context is, and the meters.

In: the chat, the engine's figures. Out: transcript entries, the title bar, the context bar, the meters. Changes only
what is displayed. The meters are updated at most twice a second while text arrives, and at the end of an answer,
without a timer: an idle app does no work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from textual import work

from edgeinfer.app.chat.commands import COMMANDS
from edgeinfer.app.plain_text import counted
from edgeinfer.app.sessions.chat import BranchPlace
from edgeinfer.app.sessions.kept_images import KeptImage
from edgeinfer.app.sessions.records import Attachment, Figures, KeptMedium, KeptMessage
from edgeinfer.app.tui.actions.picturing import PicturingActions
from edgeinfer.app.tui.engine_messages import ImagesRead, PromptRead
from edgeinfer.app.tui.screens.help import shown_keys
from edgeinfer.app.tui.widgets.chat_bars import MeterFigures
from edgeinfer.app.tui.widgets.entries import WRITING, AnswerEntry, ChatEntry, QuestionEntry
from edgeinfer.errors import EdgeInferError


def note_of(message: KeptMessage) -> str:
    """The line under an answer: how it ended, its figures, and the model."""
    ended = {
        "stopped": "stopped",
        "cut": "cut: the context is full",
        "failed": "failed",
        "writing": "being written",
    }.get(message.state, "")
    beside = message.beside
    if beside is not None:
        ended = beside.line if beside.early or not ended else f"{ended} · {beside.line}"
    return " · ".join(part for part in (ended, *figure_parts(message.figures), message.model or "") if part)


def figure_parts(figures: Figures | None) -> tuple[str, ...]:
    """The figures of an answer, as text."""
    if figures is None:
        return ()
    rate = "" if figures.decode_tok_s is None else f", {figures.decode_tok_s:.0f} tok/s"
    reused = f"reused {figures.n_cached:,} of {figures.n_prompt:,} tokens" if figures.n_cached else ""
    per_step = figures.accepted_per_step
    drafted = "" if per_step is None or per_step < 1.005 else f"{per_step:.2f} tokens per step"
    return (f"{counted(figures.n_generated, 'token')}{rate}", reused, drafted)


KEYS_SHOWN = {
    "help": "help",
    "models": "models",
    "sessions": "kept chats",
    "settings": "settings",
    "quit": "leave",
}
"""Commands whose keys are listed on the first page."""
ASKING = "waiting for your answer"
MEANWHILE = "You can type and send already; the answer follows."
PERSONA = "persona "
PROMPT_CHARACTERS = 60
"""Length at which the first page truncates a system prompt."""
READING_PROMPT = "reading the prompt"
BETWEEN_S = 0.5
"""Minimum time between two updates of the meters, in seconds."""
MODELS_KEY = "Ctrl+L shows the models that are here and fetches others."


class ShowingActions(PicturingActions):
    """Mixin of the chat screen: displays the branch, the title, the context and the meters."""

    _named_prompt: tuple[str, str] | None = None
    """The last system prompt looked up, and its name."""
    _resumable: str | None = None
    """The title of the last chat, "" if there is none, None while it was not looked up."""

    def question_entry(self, message: KeptMessage) -> QuestionEntry:
        """Build the transcript entry of a question."""
        return QuestionEntry(message.number, message.text, message.attachments, self.medium_tokens, self.previews)

    def image_tokens(self, image: KeptImage) -> int | None:
        """The tokens of an image, or None while no model is open that reads images. Callable from any thread."""
        model = self.state.model
        if model is None or not model.info.reads_images or isinstance(image.part, bytes):
            return None
        try:
            return model.prompts.n_image_tokens(image.part)
        except EdgeInferError:  # told when it is sent
            return None

    def medium_tokens(self, medium: KeptMedium) -> int | None:
        """The tokens of an image or a sound, or None while no model is open that reads it. Callable from any thread."""
        if isinstance(medium, KeptImage):
            return self.image_tokens(medium)
        model = self.state.model
        if model is None or not model.info.reads_sound or isinstance(medium.part, bytes):
            return None
        try:
            return model.prompts.n_sound_tokens(medium.part)
        except EdgeInferError:  # told when it is sent
            return None

    def answer_entry(self, message: KeptMessage) -> AnswerEntry:
        """Build the transcript entry of an answer."""
        thinking = self.state.tuning.settings.face.thinking
        note, rounds = note_of(message), message.rounds
        return AnswerEntry(message.number, message.text, note=note, thinking=thinking, rounds=rounds)

    def entry_of(self, place: BranchPlace) -> ChatEntry:
        """Build the transcript entry of any message of the branch."""
        message = place.message
        entry: ChatEntry = self.question_entry(message) if message.role == "user" else self.answer_entry(message)
        entry.show_siblings(place.index, place.n_siblings)
        return entry

    async def show_branch(self, *, without: int | None = None, at: int | None = None) -> None:
        """Show the branch, leaving out the message `without`, scrolled to its end or to the message `at`."""
        places: Sequence[BranchPlace] = [place for place in self.chat.places if place.message.number != without]
        await self.transcript.show([self.entry_of(place) for place in places])
        if at is not None:
            self.transcript.scroll_to_message(at)
        self.show_title()
        self.look_at_context()

    def show_title(self) -> None:
        """Update the title bar: the chat's title and the model, or the progress of opening one."""
        model = self.state.model
        shown = self.state.opening_text or ("no model" if model is None else model.info.name)
        name = self.prompt_name()
        marker = f"{name}: /{'persona' if name.startswith(PERSONA) else 'system'}" if name else ""
        self.title_bar.show(self.chat.title or "new chat", shown, marker)
        self.show_first_page()

    def show_first_page(self) -> None:
        """Show the first page over an empty transcript, which stays laid out so that it can follow an answer."""
        is_empty = not self.transcript.entries
        if is_empty:
            keys = " · ".join(
                f"{', '.join(shown_keys(command, self.state.keys))} {KEYS_SHOWN[command.id]}"
                for command in COMMANDS
                if command.id in KEYS_SHOWN
            )
            self.first_page.show([*self.model_lines(), *self.prompt_lines(), *self.resume_lines()], keys)
        self.first_page.set_class(is_empty, "-shown")

    def resume_lines(self) -> Sequence[str]:
        """A line about the last chat, if there is one; it is looked up once for each new chat."""
        if self._resumable is None:
            try:
                kept = self.state.store.sessions(limit=1)
            except EdgeInferError:  # told by whatever needs the chats
                kept = ()
            self._resumable = kept[0].title if kept else ""
        command = next(command for command in COMMANDS if command.id == "resume")
        keys = ", ".join(shown_keys(command, self.state.keys))
        title = " ".join(self._resumable.split())
        shown = title if len(title) <= PROMPT_CHARACTERS else f"{title[:PROMPT_CHARACTERS]}…"
        return (f"{keys} goes on with the last chat: “{shown}”.",) if shown else ()

    def prompt_name(self) -> str:
        """The name of the system prompt in use, "" if there is none. Personas are looked up once per text."""
        text = self.chat.system
        if not text:
            return ""
        if self._named_prompt is None or self._named_prompt[0] != text:
            persona = self.state.personas.of_text(text)
            self._named_prompt = text, "system prompt" if persona is None else f"{PERSONA}{persona.name}"
        return self._named_prompt[1]

    def prompt_lines(self) -> Sequence[str]:
        """Lines about the system prompt in use and how to change it."""
        name, text = self.prompt_name(), " ".join((self.chat.system or "").split())
        if not name:
            return ()
        shown = text if len(text) <= PROMPT_CHARACTERS else f"{text[:PROMPT_CHARACTERS]}…"
        change = "/persona takes another" if name.startswith(PERSONA) else "/system TEXT changes it"
        return (f"This chat has a {name}: “{shown}”.", f"{change}, /system none removes it.")

    def model_lines(self) -> Sequence[str]:
        """Lines about the open model, or the progress of opening one and what can be done meanwhile."""
        model, step = self.state.model, self.opening.step
        if model is not None:
            facts = model.info
            return (f"{facts.name} answers, on {facts.device}, with {facts.n_context:,} tokens of context.",)
        if step is not None and step.what == ASKING:
            return ("No model is here yet.",)
        if step is None:
            why = f": {self.failed}" if self.failed else "."
            return (f"No model is open{why}", MODELS_KEY)
        return [*filter(None, [self.opened]), self.opening.line(), MEANWHILE]

    def look_at_context(self) -> None:
        """Recount the tokens of the context and the draft, unless a request is running."""
        if self.writing is None and self.state.model is not None:
            draft = self.composer.draft
            self.count_context(draft.text, draft.attachments)

    @work(thread=True, exclusive=True, group="context")
    def count_context(self, draft: str, attachments: tuple[Attachment, ...]) -> None:
        from edgeinfer.app.chat.context import context_use
        from edgeinfer.app.sessions.conversation import content_of

        model = self.state.model
        if model is None:
            return
        said = content_of(draft, attachments) if draft or attachments else ""
        try:
            messages = self.chat.prompt()
            use = context_use(model, messages, said, self.state.tuning.settings.generation.max_tokens)
            n_used = model.prompts.n_tokens(messages) if messages else 0
            tools = self.state.offered_functions if messages else ()
            n_tools = model.prompts.n_tokens(messages, {"tools": tools}) - n_used if tools else 0
        except EdgeInferError:  # an invalid draft is reported when it is sent
            return
        n_draft = max(0, use.n_prompt + use.n_dropped_tokens - n_used) if said else 0
        show, is_too_long = self.context_bar.show, bool(said) and not use.fits
        counts = n_used + n_tools, n_draft, use.n_context, use.n_dropped_messages
        self.app.call_from_thread(show, *counts, is_too_long=is_too_long)

    def is_busy(self) -> bool:
        """Whether a request is running; if so, shows a notice."""
        if self.writing is not None:
            self.tell("an answer is being written; Escape stops it")
        return self.writing is not None

    def show_waiting(self, text: str) -> None:
        """Say under the answer that has not begun what it waits for."""
        widget = None if self.writing is None else self.transcript.answer(self.writing.message)
        if widget is not None:
            widget.show_doing(text)

    def on_prompt_read(self, event: PromptRead) -> None:
        """Show the progress of prefill."""
        event.stop()
        if self.writing is None:
            return
        self.prefill(READING_PROMPT, event.done, event.total)
        self.show_waiting(f"{self.prefill.line()}; Escape stops" if event.done < event.total else WRITING)
        if self.is_metered():
            return
        progress = (event.done, event.total) if event.done < event.total else None
        self.show_meters(replace(self.metered, prompt=progress))

    def on_images_read(self, event: ImagesRead) -> None:
        """Say under the answer which part of the images and sounds is being read, until the prompt is."""
        event.stop()
        writing = self.writing
        widget = None if writing is None or writing.job != event.job else self.transcript.answer(writing.message)
        if widget is not None:
            place = f" {event.done + 1}/{event.total}" if event.total > 1 else ""
            kind = "sound" if event.is_sound else "image"
            widget.show_doing(f"reading the {kind}{place}; Escape stops" if event.done < event.total else WRITING)

    def meter_answer(self) -> None:
        """Show the figures of the running request."""
        if self.is_metered() or (live := self.engine.live) is None:
            return
        self.show_meters(
            MeterFigures(
                decode_tok_s=live.decode_tok_s,
                prefill_tok_s=live.prefill_tok_s,
                n_used=live.n_prompt + live.n_generated,
                accepted_per_step=live.accepted_per_step,
            )
        )
        if self.state.model is not None and self.writing is not None and not self.writing.is_summary:
            self.context_bar.show(live.n_prompt + live.n_generated, 0, self.state.model.info.n_context)

    def show_figures(self, figures: Figures | None) -> None:
        """Show the figures of a finished answer; without figures, only memory and context."""
        self.show_meters(
            MeterFigures()
            if figures is None
            else MeterFigures(
                decode_tok_s=figures.decode_tok_s,
                prefill_tok_s=figures.prefill_tok_s,
                n_used=figures.n_prompt + figures.n_generated,
                accepted_per_step=figures.accepted_per_step,
                joules_per_token=figures.joules_per_token,
            )
        )

    def show_meters(self, figures: MeterFigures) -> None:
        """Update the meters with these figures, completed by context and memory."""
        model, readings = self.state.model, self.engine.readings
        if model is not None:
            figures = replace(figures, n_context=model.info.n_context)
        if readings is not None:
            process_bytes, kv_bytes = readings.taken()
            figures = replace(figures, ram_bytes=process_bytes, kv_bytes=kv_bytes)
        self.metered, self.metered_s = figures, time.monotonic()
        self.meters.show(figures)

    def is_metered(self) -> bool:
        """Whether the meters were updated less than BETWEEN_S ago."""
        return time.monotonic() - self.metered_s < BETWEEN_S
