"""The sequences of several answers: those that begin with the prompt, and those that begin within another answer.

In: the request of an answer, by its number; what another answer has written. Out: sequences for the scheduler. A fork
is an ordinary request whose prompt has what was written so far, with a seed of its own, so it is exactly what that
request gives alone; the scheduler lets it share the pages of the answer that it was forked from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgeinfer.engine.requests.drafting import ClosingSpeculator
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.allotment import Priority


class AnswerSequences:
    """Makes the sequences of the answers to one request."""

    def __init__(
        self,
        pool: Pool,
        tokenizer: Tokenizer,
        drafts: Callable[[], ClosingSpeculator | None],
        priority: Priority,
        request: Callable[[int], Request],
        logprobs: int | None,
    ) -> None:
        """`request`: of an answer that begins with the prompt, with a seed and a constraint of its own.

        `logprobs`: as in `Request`, of forks.
        """
        self._pool, self._drafts, self._priority, self._request = pool, drafts, priority, request
        self._logprobs = logprobs
        self.tokenizer = tokenizer

    def first(self, n: int) -> list[ScheduledSequence]:
        """The first `n`, which begin with the prompt."""
        return [self.one(number) for number in range(n)]

    def one(self, number: int) -> ScheduledSequence:
        """One that begins with the prompt."""
        return self._sequence(self._request(number))

    def forked(
        self, number: int, parent: ScheduledSequence, n_tokens: int, more: Sequence[TokenLogprobs]
    ) -> ScheduledSequence:
        """One that begins with the first tokens of another and `more`.

        Raises BadSetting, ContextOverflow where nothing can follow these.
        """
        own, request = parent.request, parent.request
        if own.constraint is not None or own.sampling.seed is not None:
            request = self._request(number)
        written = (*parent.tokens[:n_tokens], *(each.token for each in more))
        told = () if self._logprobs is None else (*parent.chooser.logprobs[:n_tokens], *more)
        return self._sequence(
            replace(
                own,
                prompt=own.prompt[: own.n_before] + written,
                sampling=request.sampling,
                constraint=request.constraint,
                scored_from=None,
                logprobs=self._logprobs,
                entropies=False,
                written=len(written),
                told=told,
            )
        )

    def _sequence(self, request: Request) -> ScheduledSequence:
        return ScheduledSequence(
            self._pool.reserve(),
            self.tokenizer,
            request,
            opens=self._drafts,
            priority=self._priority,
            shares_prefix=True,
            counts_energy=False,
        )
