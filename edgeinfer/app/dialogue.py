"""A conversation as a face keeps it: messages, options, and the session that remembers what it has read.

In: what the user says. Out: streams of answers; a turn counts once its answer is `kept`. Knows no terminal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeinfer.engine.request import Options
from edgeinfer.engine.session import Session
from edgeinfer.engine.stats import Stats
from edgeinfer.engine.stream import TextStream


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user said, what was answered, and how often another answer was asked for."""

    question: str
    answer: str
    stats: Stats | None
    n_retries: int = 0


class Dialogue:
    """One conversation over a session."""

    def __init__(self, session: Session, options: Options, system: str | None) -> None:
        self._session = session
        self.options = options
        self.system = system
        self.turns: list[Turn] = []

    def ask(self, question: str) -> TextStream:
        """Start an answer to `question`. Raises EdgeInferError where it cannot."""
        return self._answer(question, self.turns, 0)

    def ask_again(self) -> TextStream:
        """Start another answer to the last question; with a fixed seed, one of the next seed. There must be a turn."""
        last = self.turns[-1]
        return self._answer(last.question, self.turns[:-1], last.n_retries + 1)

    def keep(self, question: str, stream: TextStream) -> None:
        """Count an answer to a new question, whole or partial."""
        self.turns.append(Turn(question, stream.text, stream.stats))

    def keep_instead(self, stream: TextStream) -> None:
        """Count an answer in place of the last one."""
        last = self.turns[-1]
        self.turns[-1] = replace(last, answer=stream.text, stats=stream.stats, n_retries=last.n_retries + 1)

    def clear(self) -> None:
        """Begin anew; system prompt and options stay."""
        self.turns.clear()

    def _answer(self, question: str, before: list[Turn], n_retries: int) -> TextStream:
        messages = [] if not self.system else [{"role": "system", "content": self.system}]
        for turn in before:
            messages += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
        messages.append({"role": "user", "content": question})
        options = self.options.copy()
        seed = options.get("seed")
        if seed is not None:
            options["seed"] = seed + n_retries
        return self._session.chat(messages, **options)
