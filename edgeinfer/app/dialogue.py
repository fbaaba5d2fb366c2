"""A conversation in line mode: messages, options, and the session that holds its KV cache.

In: what the user says, perhaps a saved chat to continue. Out: streams of answers. A turn becomes part of the
conversation when its answer is passed to `keep`, and is then written to the saved chat. Knows no terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.conversation import SUMMARY, told_of, with_attachments
from edgeinfer.app.sessions.figures import figures_of, state_of, text_of
from edgeinfer.engine.requests.request import Options
from edgeinfer.engine.scheduler.stats import Stats
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.session import Session
from edgeinfer.errors import EdgeInferError


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """What the user said, the answer, and how often it was regenerated."""

    question: str
    answer: str
    stats: Stats | None
    n_retries: int = 0


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

    def ask(self, question: str) -> TextStream:
        """Start an answer to `question`. Raises EdgeInferError if that is impossible."""
        return self._answer(question, self.turns, 0)

    def ask_again(self) -> TextStream:
        """Start another answer to the last question; a fixed seed is increased by one. There must be a turn."""
        last = self.turns[-1]
        return self._answer(last.question, self.turns[:-1], last.n_retries + 1)

    def keep(self, question: str, stream: TextStream) -> None:
        """Record an answer, complete or partial, to a new question."""
        self.turns.append(DialogueTurn(question, stream.text, stream.stats))
        with self._writing() as chat:
            if chat is not None:
                _, answer = chat.ask(question, (), self._model)
                _finish(chat, answer.number, stream)

    def keep_instead(self, stream: TextStream) -> None:
        """Record an answer in place of the last one."""
        last = self.turns[-1]
        self.turns[-1] = replace(last, answer=stream.text, stats=stream.stats, n_retries=last.n_retries + 1)
        with self._writing() as chat:
            if chat is not None:
                _finish(chat, chat.answer_again(self._model).number, stream)

    def clear(self) -> None:
        """Start a new conversation; system prompt and options stay."""
        self.turns.clear()
        self._summary = ""
        if self._chat is not None:
            self._chat = self._chat.successor()

    def _answer(self, question: str, before: list[DialogueTurn], n_retries: int) -> TextStream:
        told = "\n\n".join(filter(None, (self.system, self._summary)))
        messages = [{"role": "system", "content": told}] if told else []
        for turn in before:
            messages += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
        messages.append({"role": "user", "content": question})
        options = self.options.copy()
        seed = options.get("seed")
        if seed is not None:
            options["seed"] = seed + n_retries
        return self._session.chat(messages, **options)

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
        DialogueTurn(with_attachments(question.text, question.attachments), answer.text, None)
        for question, answer in pairwise(said)
        if (question.role, answer.role) == ("user", "assistant")
    ]


def summary_of(chat: Chat) -> str:
    """The summary of the branch's earlier turns, for the system prompt; "" if there is none."""
    return "\n\n".join(f"{SUMMARY}\n{message.text}" for message in chat.branch if message.role == "summary")


def _finish(chat: Chat, answer: int, stream: TextStream) -> None:
    assert stream.stats is not None
    chat.finish(answer, text_of(stream.text, stream.stats), state_of(stream.stats), figures_of(stream.stats))
