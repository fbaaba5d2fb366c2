"""Several answers to one request, of which one is kept: what `LLM.several` returns.

In: sequences of the scheduler, a picking. Out: the text of all answers as it arrives, and in the end the one that is
kept. They share the pages of their prompt and run in the same passes; each is exactly the answer that the same request
has alone with its seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.step_driver import StepDriver
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.several.picking import Choice, Judge, Picking, chosen_of
from edgeinfer.engine.several.side_by_side import SideBySide


class Several(SideBySide):
    """Several answers to one request. Iterate over it once, with `for` or `async for`, to generate them.

    `answers` are streams, to look at and not to iterate over; `choice` says which one is kept once that is decided,
    `chosen` is that answer.
    """

    def __init__(self, sequences: Sequence[ScheduledSequence], driver: StepDriver, picking: Picking) -> None:
        """Generates nothing before the first piece is requested."""
        super().__init__(sequences, driver)
        self._judge = Judge(self.answers, picking, self._wake)

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

    def _has_news(self) -> bool:
        return super()._has_news() or self._judge.n_unnoted_checks > 0

    @property
    def _is_over(self) -> bool:
        """Whether all answers are over, and what was decided waits for no check."""
        return super()._is_over and (self.choice is not None or not self._judge.awaits_checks)

    def _look(self) -> None:
        self._judge.look(self.seconds, self._told_over)

    def _left(self) -> None:
        self._judge.close()
