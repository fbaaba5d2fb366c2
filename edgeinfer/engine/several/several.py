"""Several answers to one request, of which one is kept: what `LLM.several` returns.

In: sequences of the scheduler, a picking, a leader if answers are led. Out: the text of all answers as it arrives, and
in the end the one that is kept. They share the pages of their prompt, and of what was written before they were forked,
and run in the same passes; each is exactly the answer that the same request has alone with its seed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
from edgeinfer.engine.several.forks import AnswerSequences
from edgeinfer.engine.several.leading import Leader
from edgeinfer.engine.several.picking import Choice, Judge, Picking, chosen_of
from edgeinfer.engine.several.side_by_side import SideBySide
from edgeinfer.engine.several.waiting import WaitingAnswers
from edgeinfer.errors import BadSetting, ContextOverflow
from edgeinfer.scheduling.several.forking import Fork


@dataclass(frozen=True, slots=True)
class Led:
    """How answers begin, and who leads them. `n_first`: how many begin with the prompt; `n`: how many there may be.

    `leader`: None if nobody forks any; `waiting`: those of `n` that begin when the budget allows it, if any wait.
    """

    n_first: int
    n: int
    leader: Leader | None = None
    waiting: WaitingAnswers | None = None


class Several(SideBySide):
    """Several answers to one request. Iterate over it once, with `for` or `async for`, to generate them.

    `answers` are streams, to look at and not to iterate over; `choice` says which one is kept once that is decided,
    `chosen` is that answer.
    """

    def __init__(self, sequences: AnswerSequences, driver: StepDriver, picking: Picking, led: Led) -> None:
        """Generates nothing before the first piece is requested."""
        super().__init__(sequences.first(led.n_first), driver)
        self._source, self._leader, self._waiting = sequences, led.leader, led.waiting
        self._judge = Judge(self.answers, picking, self._wake)
        if led.leader is not None or led.waiting is not None:
            self._judge.expect(led.n)
        self.forks: tuple[Fork | None, ...] = (None,) * led.n_first
        """Where each answer was forked from another one; None for those that were written from their start."""

    @property
    def choice(self) -> Choice | None:
        """The answer that is kept, and why; None while that is open."""
        return self._judge.choice

    @property
    def chosen(self) -> TextStream | None:
        """The answer that is kept; None while that is open."""
        choice = self.choice
        return None if choice is None else self.answers[choice.number]

    def read(self) -> str:
        """Generate to the end and return the text of the answer that is kept. Raises EdgeInferError if it was stopped.

        As `chosen.text`: with thoughts, if there are any.
        """
        for _ in self:
            pass
        return self.answers[chosen_of(self._judge).number].text

    @property
    def ended(self) -> Collection[int]:
        """The answers that are over, all of whose text was taken."""
        return self._told_over

    def beginning(self, number: int, n_tokens: int) -> str:
        """The text of the first tokens of an answer, thoughts included."""
        return self._sequences[number].output.text(n_tokens)

    def fork(self, number: int, n_tokens: int, more: Sequence[TokenLogprobs] = ()) -> int | None:
        """As `leading.LedAnswers` says; for leaders alone."""
        if self._is_stopped:
            return None
        fork, place = Fork(number, n_tokens), len(self.answers)
        try:
            sequence = self._source.forked(place, self._sequences[number], n_tokens, more)
        except (BadSetting, ContextOverflow):
            return None
        self.forks = (*self.forks, fork)
        self._judge.add(self._add(sequence), fork)
        return place

    def drop(self, number: int) -> None:
        """As `leading.LedAnswers` says; for leaders alone."""
        self._judge.drop(number)

    def weigh(self, number: int, weight: float) -> None:
        """As `leading.LedAnswers` says; for leaders alone."""
        self._judge.weigh(number, weight)

    def expect(self, n: int) -> None:
        """As `leading.LedAnswers` says; for leaders alone."""
        self._judge.expect(n)

    def _has_news(self) -> bool:
        return super()._has_news() or self._judge.n_unnoted_checks > 0

    @property
    def _is_over(self) -> bool:
        """Whether all answers are over, and what was decided waits for no check."""
        return super()._is_over and (self.choice is not None or not self._judge.awaits_checks)

    def _look(self) -> None:
        if self._leader is not None and self.choice is None and not self._judge.is_spent:
            self._leader.look(self)
        self._judge.look(self.seconds, self._told_over)
        if self._waiting is not None and self._waiting.n and self.choice is None and not self._judge.is_spent:
            self._begin_more(self._waiting)

    def _begin_more(self, waiting: WaitingAnswers) -> None:
        """Begin the waiting answers that the budget allows; if none does any more, decide without them."""
        spent = self._judge.n_tokens, self.seconds
        for _ in range(0 if self._is_stopped else waiting.next(self.answers, len(self._told_over), *spent)):
            self.forks = (*self.forks, None)
            self._judge.add(self._add(self._source.one(len(self.answers))))
        if waiting.n and (self._is_stopped or len(self._told_over) == len(self.answers)):
            if not self._is_stopped:
                self._judge.n_left_out = waiting.n
            waiting.n = 0
            self._judge.expect(len(self.answers))
            self._judge.look(self.seconds, self._told_over)

    def _left(self) -> None:
        self._judge.close()
