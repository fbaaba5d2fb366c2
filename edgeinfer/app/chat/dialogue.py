"""A conversation in line mode: messages, options, the session that holds its KV cache, and its slash commands.

In: what the user says, perhaps a saved chat to continue; lines with a command. Out: streams of answers; the text to
show, and whether to answer again or to leave. A turn becomes part of the conversation when its answer is passed to
`keep`, and is then written to the saved chat. Knows no terminal and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any

from edgeinfer.app.answer_output import stats_text
from edgeinfer.app.chat.chat_modules import ChatModules
from edgeinfer.app.chat.commands import find, slash_commands
from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.conversation import (
    SUMMARY,
    content_of,
    figures_of,
    round_messages,
    state_of,
    text_of,
    told_of,
)
from edgeinfer.app.sessions.records import Attachment, ToolRound
from edgeinfer.engine.requests.named_modules import NamedModules
from edgeinfer.engine.requests.request import Options
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.session import Session
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.settings import find_option, read_value


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """What the user said, the answer, how often it was regenerated, and the calls of tools before its text.

    `attachments`: texts, images and sounds that the user sent with it.
    """

    question: str
    answer: str
    stats: Stats | None
    n_retries: int = 0
    rounds: tuple[ToolRound, ...] = ()
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """An answer, complete or partial: its last stream, its text, and the calls of tools before it."""

    stream: TextStream
    text: str
    rounds: tuple[ToolRound, ...] = ()


class Dialogue:
    """One conversation over a session. `chat`: the saved chat that it continues and is written to, if it is saved.

    A failed write does not end the dialogue: `unsaved` holds the reason, "" if all is well.
    """

    def __init__(
        self,
        session: Session,
        options: Options,
        system: str | None,
        chat: Chat | None = None,
        model: str | None = None,
    ) -> None:
        self._session = session
        self._chat = chat
        self._model = model
        self.options = options
        self._system = system if chat is None else chat.system
        self.turns: list[DialogueTurn] = [] if chat is None else turns_of(chat)
        self._summary = "" if chat is None else summary_of(chat)
        self.modules = ChatModules()
        """Files that stand before the first question."""
        self.unsaved = ""

    @property
    def system(self) -> str | None:
        """The system prompt."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = text
        with self._writing() as chat:
            if chat is not None:
                chat.system = text

    def ask(self, question: str, attachments: Sequence[Attachment] = ()) -> TextStream:
        """Start an answer to `question`. Raises EdgeInferError if that is impossible."""
        return self.begin(self.prompt(question, attachments))

    def ask_again(self) -> TextStream:
        """Start another answer to the last question; a fixed seed is increased by one. There must be a turn."""
        return self.begin(self.prompt(None), is_again=True)

    def prompt(self, question: str | None, attachments: Sequence[Attachment] = ()) -> list[dict[str, Any]]:
        """The conversation up to a question; None: up to the last one, of which there must be one."""
        before, asked = self.turns, content_of(question or "", attachments)
        if question is None:
            before, asked = self.turns[:-1], content_of(self.turns[-1].question, self.turns[-1].attachments)
        told = "\n\n".join(filter(None, (self.system, self._summary)))
        messages: list[dict[str, Any]] = [{"role": "system", "content": told}] if told else []
        n_calls = 0
        for turn in before:
            messages.append({"role": "user", "content": content_of(turn.question, turn.attachments)})
            for each in turn.rounds:
                messages += [message.as_mapping() for message in round_messages(each, n_calls)]
                n_calls += len(each.calls)
            if turn.answer or not turn.rounds:
                messages.append({"role": "assistant", "content": turn.answer})
        return [*messages, {"role": "user", "content": asked}]

    def begin(
        self, messages: list[dict[str, Any]], further: Mapping[str, Any] | None = None, *, is_again: bool = False
    ) -> TextStream:
        """Start an answer to a conversation, with further options. Raises EdgeInferError if that is impossible.

        `is_again`: another answer to the last question.
        """
        options: Any = {**self.options, **(further or {})}
        if is_again and options.get("seed") is not None:
            options["seed"] += self.turns[-1].n_retries + 1
        return self._session.chat(messages, **options)

    def keep(self, question: str, answer: GivenAnswer, attachments: Sequence[Attachment] = ()) -> None:
        """Record an answer, complete or partial, to a new question."""
        sent = tuple(attachments)
        self.turns.append(DialogueTurn(question, answer.text, answer.stream.stats, 0, answer.rounds, sent))
        with self._writing() as chat:
            if chat is not None:
                _, kept = chat.ask(question, sent, self._model)
                _finish(chat, kept.number, answer)

    def keep_instead(self, answer: GivenAnswer) -> None:
        """Record an answer in place of the last one."""
        last, stats = self.turns[-1], answer.stream.stats
        n_retries = last.n_retries + 1
        self.turns[-1] = replace(last, answer=answer.text, stats=stats, n_retries=n_retries, rounds=answer.rounds)
        with self._writing() as chat:
            if chat is not None:
                _finish(chat, chat.answer_again(self._model).number, answer)

    def clear(self) -> None:
        """Start a new conversation; system prompt and options stay."""
        self.turns.clear()
        self._summary = ""
        if self._chat is not None:
            self._chat = self._chat.successor()

    @contextmanager
    def _writing(self) -> Iterator[Chat | None]:
        """Yield the saved chat to write to, and record errors in `unsaved`."""
        try:
            yield self._chat
        except EdgeInferError as error:
            self.unsaved = str(error)


def turns_of(chat: Chat) -> list[DialogueTurn]:
    """The turns of the branch shown: questions with their answers."""
    said = [message for message in told_of(chat.branch) if message.role != "summary"]
    return [
        DialogueTurn(question.text, answer.text, None, rounds=answer.rounds, attachments=question.attachments)
        for question, answer in pairwise(said)
        if (question.role, answer.role) == ("user", "assistant")
    ]


def summary_of(chat: Chat) -> str:
    """The summary of the branch's earlier turns, for the system prompt; "" if there is none."""
    return "\n\n".join(f"{SUMMARY}\n{message.text}" for message in chat.branch if message.role == "summary")


def _finish(chat: Chat, number: int, answer: GivenAnswer) -> None:
    stats = answer.stream.stats
    assert stats is not None
    if answer.rounds:
        chat.note_rounds(number, answer.rounds)
    chat.finish(number, text_of(answer.text, stats), state_of(stats), figures_of(stats))


ATTACHING = "@path in a question attaches a text file, an image, a sound or a folder."
OPTION_NAMES = {"temp": "temperature", "seed": "seed"}
"""Settings that can be changed during a dialogue and affect its answers."""


class Then(Enum):
    """What happens after a slash command."""

    NEXT = "next line"
    ANSWER = "answer the last question again"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The text to show, and what happens next."""

    text: str = ""
    then: Then = Then.NEXT


class LineCommands:
    """A dialogue as commands see it: a `ChatFace` with the actions that need no screen."""

    def __init__(self, dialogue: Dialogue, modules: NamedModules | None = None) -> None:
        """`modules`: the model's, if there is a model."""
        self._dialogue, self._modules = dialogue, modules

    def run(self, line: str) -> CommandOutcome:
        """Run a line such as "/temp 0.2". Raises BadSetting for an unknown command or a bad value."""
        command, argument = find(line, LineCommands)
        if command.run is not None:
            return CommandOutcome(command.run(self, argument))
        outcome: CommandOutcome = getattr(self, f"action_{command.action}")()
        return outcome

    @property
    def system_prompt(self) -> str | None:
        return self._dialogue.system

    def set_system_prompt(self, text: str | None) -> None:
        self._dialogue.system = text

    def set_for_now(self, name: str, text: str) -> str:
        options: Any = self._dialogue.options
        if text:
            options[OPTION_NAMES[name]] = read_value(name, text, f"/{name}")
        value = options.get(OPTION_NAMES[name])
        return f"{name}: {find_option(name).unset if value is None else value}"

    def change_modules(self, argument: str) -> str:
        if self._modules is None:
            raise BadSetting("there is no model yet that could read modules")
        shown = self._dialogue.modules.run(argument, self._modules)
        self._dialogue.options["modules"] = self._dialogue.modules.names(self._modules)
        return shown

    def action_help(self) -> CommandOutcome:
        """List the commands."""
        lines = [f"/{command.form:<20} {command.help}" for command in slash_commands(LineCommands)]
        return CommandOutcome(
            "\n".join([*lines, ATTACHING, "Ctrl-C stops an answer and keeps its text; Ctrl-D quits."])
        )

    def action_new(self) -> CommandOutcome:
        """Start a new conversation."""
        self._dialogue.clear()
        stays = "; its system prompt stays, /system none removes it" if self._dialogue.system else ""
        return CommandOutcome(f"a new conversation{stays}")

    def action_regen(self) -> CommandOutcome:
        """Answer the last question again."""
        if not self._dialogue.turns:
            return CommandOutcome("there is no answer yet")
        return CommandOutcome(then=Then.ANSWER)

    def action_machine(self) -> CommandOutcome:
        """Show the statistics of the last answer."""
        stats = self._dialogue.turns[-1].stats if self._dialogue.turns else None
        return CommandOutcome("there is no answer yet" if stats is None else stats_text(stats))

    def action_leave(self) -> CommandOutcome:
        """Quit."""
        return CommandOutcome(then=Then.LEAVE)
