"""Answers that wait until a budget allows them to begin: each that begins can come to its end.

In: a budget, the most tokens of an answer, what a pass costs. Out: how many more may begin now. With a limit in seconds
one answer reads the prompt, and the others begin when it has, since they would wait for its pages anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.scheduling.several.budgets import Budget, TogetherS, affordable


class WaitingAnswers:
    """Those of `n` answers that have not begun; their numbers follow those of the ones that have."""

    def __init__(self, n: int, budget: Budget, n_prompt: int, most_each: int | None, pass_s: TogetherS | None) -> None:
        """`most_each`: limit of each answer, without which nothing waits. `pass_s`: None where costs are unknown."""
        self.n = n
        """How many have not begun."""
        self._budget, self._n_prompt, self._most_each, self._pass_s = budget, n_prompt, most_each, pass_s
        self._looked_at = -1

    def first(self) -> int:
        """How many begin at once, at least one."""
        if self._most_each is None:
            return self._begun(self.n)
        if self._budget.most_s and self._pass_s is not None:
            return self._begun(1)
        return self._begun(max(1, affordable(self._budget, (), self._most_each, self.n, self._n_prompt, None)))

    def next(self, answers: Sequence[TextStream], n_ended: int, n_tokens: int, seconds: float) -> int:
        """How many begin now: looked at when the prompt was read, and whenever an answer has ended.

        `n_ended` of the `answers` are over; `n_tokens` and `seconds` were spent.
        """
        assert self._most_each is not None
        if n_ended == self._looked_at or (not n_ended and not answers[0].tokens):
            return 0
        self._looked_at = n_ended
        written = [len(answer.tokens) for answer in answers if answer.stats is None]
        under_way = [max(0, self._most_each - n_written) for n_written in written]
        n_cached = self._n_prompt + (sum(written) // len(written) if written else 0)
        left = self._budget.less(n_tokens, seconds)
        return self._begun(affordable(left, under_way, self._most_each, self.n, n_cached, self._pass_s))

    def _begun(self, n: int) -> int:
        self.n -= n
        return n
