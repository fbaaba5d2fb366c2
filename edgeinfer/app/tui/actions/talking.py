"""Changes what the conversation runs with: system prompt, persona, settings, attachments, compaction of the context.

In: keys and commands. Out: changed settings, notices, summaries. Nothing is cut without a notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import work

from edgeinfer.app.chat.chat_modules import adds_module
from edgeinfer.app.chat.given_paths import given_paths
from edgeinfer.app.tui.actions.answering import AnsweringActions
from edgeinfer.app.tui.actions.switching import Switching
from edgeinfer.app.tui.app_state import needs_reload
from edgeinfer.app.tui.engine_messages import Answered, Summarise
from edgeinfer.app.tui.screens.chat_parts import Writing
from edgeinfer.app.tui.widgets.composer import Composer
from edgeinfer.app.tui.widgets.entries import AnswerEntry
from edgeinfer.errors import EdgeInferError
from edgeinfer.settings import find_option

if TYPE_CHECKING:
    from edgeinfer.app.chat.personas import NamedText
    from edgeinfer.app.sessions.records import Attachment
    from edgeinfer.app.tui.engine import EngineModel
    from edgeinfer.engine.model_info import ModelInfo


def why_unread(model: ModelInfo, attachments: Sequence[Attachment]) -> str | None:
    """Why a model cannot be sent images or sounds that are attached, and what would work; None if it can."""
    is_blind = any(one.image for one in attachments) and not model.reads_images
    is_deaf = any(one.sound for one in attachments) and not model.reads_sound
    if not is_blind and not is_deaf:
        return None
    kind = "images" if is_blind else "sound"
    return (
        f"{model.name}, as it was opened, reads no {kind}: that takes its projector file (mmproj-….gguf) beside it or "
        "in the setting mmproj, and the cpu. /model opens another one"
    )


class Talking(Switching, AnsweringActions):
    """Mixin of the chat screen: system prompt, settings, attachments, compaction."""

    _told_unread: str | None = None
    """Why the model cannot read the draft's images or sounds, if it was said."""

    @property
    def system_prompt(self) -> str | None:
        """The system prompt of this chat."""
        return self.chat.system

    def set_system_prompt(self, text: str | None) -> None:
        """Set or remove the system prompt of this chat."""
        self.chat.system = text
        self.show_title()
        self.look_at_context()

    def action_personas(self, argument: str = "") -> None:
        """Use the named persona, or choose one from a list."""
        from edgeinfer.app.tui.screens.personas import PersonasScreen

        if argument:
            self.use_persona(self.state.personas.find(argument))
            return
        self.app.push_screen(PersonasScreen(self.state.personas, self.chat.system), self.use_persona)

    def use_persona(self, chosen: NamedText | None) -> None:
        """Use a persona's text as the system prompt. If none was chosen, refresh its name in the title."""
        self._named_prompt = None
        if chosen is None:
            self.show_title()
            return
        try:
            self.chat.system = chosen.text
        except EdgeInferError as error:
            self.tell(str(error), is_error=True)
        else:
            self.show_title()
            self.look_at_context()
            self.tell(f"{chosen.name} answers now")

    def action_prompts(self, argument: str = "") -> None:
        """Put the named saved prompt into the input, or choose one from a list."""
        from edgeinfer.app.tui.screens.personas import SavedPromptsScreen

        if argument:
            self.use_prompt(self.state.prompts.find(argument))
            return
        draft = self.composer.draft.text
        self.app.push_screen(SavedPromptsScreen(self.state.prompts, draft), self.use_prompt)

    def use_prompt(self, chosen: NamedText | None) -> None:
        """Put a saved prompt into the input, with its fields filled in."""
        from edgeinfer.app.chat.saved_prompts import fields_of
        from edgeinfer.app.tui.screens.prompt_fields import PromptFieldsScreen

        if chosen is None:
            return
        if fields_of(chosen.text):
            self.app.push_screen(PromptFieldsScreen(chosen), self.put_prompt)
        else:
            self.put_prompt(chosen.text)

    def put_prompt(self, text: str | None) -> None:
        """Put a text into the input, to be changed or sent."""
        if text is not None:
            self.composer.put(text)

    def action_set(self, argument: str = "") -> None:
        """Change any setting for this run: /set NAME VALUE."""
        name, _, value = argument.partition(" ")
        if not name:
            self.action_settings()
            return
        self.tell(self.set_for_now(name, value.strip()))

    def set_for_now(self, name: str, text: str) -> str:
        """Change a setting for this run, unless `text` is empty. Returns a line with its value."""
        value = self.state.tuning.put(name, text) if text else self.state.tuning.settings.value(name)
        shown = find_option(name).unset if value in (None, ()) else value
        later = text and needs_reload(name)
        self.look_at_context()
        if text and name == "previews":
            self.redraw_previews()
        return f"{name}: {shown}{', once the model is reloaded with /model' if later else ''}"

    def change_modules(self, argument: str) -> str:
        """List, add or remove modules; a file is read in a thread."""
        model = self.state.model
        if model is None:
            return "no model is open yet, which would read them"
        if not adds_module(argument):
            return self.state.modules.run(argument, model.modules)
        self.add_module(argument, model)
        return "reading it …"

    @work(thread=True, group="modules")
    def add_module(self, argument: str, model: EngineModel) -> None:
        """Let the model read a file."""
        try:
            shown, is_error = self.state.modules.run(argument, model.modules), False
        except EdgeInferError as error:
            shown, is_error = str(error), True
        self.app.call_from_thread(self.tell, shown, is_error=is_error)

    @work(thread=True, exclusive=True, group="prompt")
    def action_prompt(self, argument: str = "") -> None:
        """Show the prompt as the model gets it, including special tokens."""
        model, messages = self.state.model, self.chat.prompt()
        if model is None:
            self.app.call_from_thread(self.tell, "no model is open yet; its template makes the prompt")
            return
        from edgeinfer.app.tui.screens.viewer import ViewerScreen
        from edgeinfer.models.text import Message

        if not messages or messages[-1].role == "system":
            messages = [*messages, Message("user", self.app.call_from_thread(lambda: self.composer.draft.text) or "…")]
        try:
            options = self.state.tuning.answer_options
            variables, tools = options.get("template_variables", {}), self.state.offered_functions
            text = model.prompts.render(messages, tools or None, variables)
        except EdgeInferError as error:
            self.app.call_from_thread(self.tell, str(error), is_error=True)
            return
        self.app.call_from_thread(self.app.push_screen, ViewerScreen("the prompt as the model is given it", text))

    async def action_attach(self, argument: str = "") -> None:
        """Attach text files, images, sounds or folders: /attach PATH."""
        if not argument:
            self.tell("which file, image, sound or folder? /attach PATH, or @PATH in the text")
            return
        for path in given_paths(argument, Path.cwd()) or [Path(argument)]:
            self.composer.attach(path)

    def on_composer_edited(self, event: Composer.Edited) -> None:
        """The draft has changed: recount the context, and say it if the model cannot read its images or sounds."""
        self.look_at_context()
        model = self.state.model
        unread = None if model is None else why_unread(model.info, event.attachments)
        if unread is not None and unread != self._told_unread:
            self.tell(unread)
        self._told_unread = unread

    async def action_compact(self, argument: str = "") -> None:
        """Have the model summarise the oldest messages; the current branch is kept."""
        if self.is_busy():
            return
        number = self.chat.number
        if number is None or len(self.chat.branch) < 4:
            self.tell("there is too little to sum up yet")
            return
        widget = AnswerEntry(0, "", note="summing up the oldest messages; Escape stops it")
        await self.transcript.add(widget)
        widget.begin()
        self.transcript.follow()
        job = Summarise(self.new_job(), number, tuple(self.chat.told()))
        self.writing = Writing(job.number, 0, "", is_summary=True)
        self.engine.give(job)

    async def end_summary(self, event: Answered) -> None:
        """Continue with a branch that starts with the summary, or show a notice if there is none."""
        if event.state == "whole" and event.text.strip() and event.n_summarised:
            try:
                self.chat.compacted(event.text.strip(), event.n_summarised, self.model_name)
            except EdgeInferError as error:
                self.tell(f"the summary cannot be saved: {error}", is_error=True)
                return
            self.tell(f"the {event.n_summarised} oldest messages are summed up; /tree shows them all")
        else:
            self.tell("nothing was summed up; the chat is as it was")
        await self.show_branch()

    def action_tint(self, argument: str = "") -> None:
        """Highlight which text of the selected answer, or the last one, was drafted, coloured by draft source."""
        widget = self.transcript.answer(self.transcript.selected) or self.transcript.last_answer
        if widget is None or not widget.runs:
            self.tell("what was drafted is known of answers of this run; ask something first")
            return
        widget.toggle_tint()

    def action_thinking(self, argument: str = "") -> None:
        """Unfold or fold the models' thinking."""
        self.transcript.toggle_thinking()
