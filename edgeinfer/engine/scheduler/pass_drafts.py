"""Drafts of a pass: which answers draft in it, how much room their drafts have, and how long it took.

In: the answers of the next pass with their tokens. Out: their drafts, which share the room so as to raise the tokens
per second of all answers together. A draft takes pages of the KV cache until the pass is over, and a row of logits for
each token: there are as many as the pass has outputs, and pages that are free. Runs no passes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgeinfer.engine.requests.drafting import Drafted, DraftRequest, DraftRoom, PassDrafter, Speculator
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.admission import Admission
from edgeinfer.engine.scheduler.passes import BatchWork
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.graph.step import Batch

FOR_DRAFTS = 8
"""Tokens of a pass that prompts leave to the drafts of each answer,"""
MOST_FOR_DRAFTS = 1 / 4
"""and the most they leave, as a share of the pass."""


@dataclass(slots=True)
class _PassContents:
    """Tokens of prompts; answers, and tokens of theirs; rows of logits."""

    n_prompt: int = 0
    n_answers: int = 0
    n_tokens: int = 0
    n_outputs: int = 0

    def add(self, n_tokens: int, n_outputs: int, *, is_prompt: bool) -> None:
        """Add a text."""
        self.n_outputs += n_outputs
        if is_prompt:
            self.n_prompt += n_tokens
        else:
            self.n_answers, self.n_tokens = self.n_answers + 1, self.n_tokens + n_tokens


class PassDrafts:
    """Asks for drafts. `advances`: passes do not wait for all answers, so each is drafted for when its turn comes."""

    def __init__(self, pool: Pool, admission: Admission, *, advances: bool) -> None:
        self._pool, self._admission, self._advances = pool, admission, advances
        self._limits = pool.executor.limits
        self.n_left = 0
        """Tokens that the pass has room for beside one of each answer and what is read of prompts."""
        self._measured: tuple[PassDrafter, int] | None = None
        self._n_asked = 0
        self._timed: dict[ScheduledSequence, Speculator] = {}

    @property
    def left_by_prompts(self) -> int:
        """How many tokens of the next pass prompts should leave to drafts, going by the answers of the last one."""
        n_all = self._limits.max_tokens
        return max(0, min(FOR_DRAFTS * self._n_asked, int(MOST_FOR_DRAFTS * n_all), (n_all - self._n_asked) // 2))

    def drafted(self, given: Sequence[tuple[ScheduledSequence, int]]) -> dict[ScheduledSequence, Drafted]:
        """The drafts of the next pass; each answer may have so many tokens of its prompt in it.

        An error fails the answers that it concerns.
        """
        asked = {sequence: request for sequence, _ in given if (request := sequence.draft_request()) is not None}
        self._timed = {}
        if len(given) == 1:
            self._timed = {sequence: request.speculator for sequence, request in asked.items()}
            asked = {sequence: request for sequence, request in asked.items() if not request.speculator.rests}
        self._measured, self._n_asked, beside = None, len(asked), self._without_drafts(given)
        n_outputs, n_tokens = self._limits.max_outputs - beside.n_outputs, self._limits.max_tokens - beside.n_prompt
        self.n_left = max(0, min(n_outputs, n_tokens - beside.n_tokens))
        if not asked:
            return {}
        n_pages = self._n_pages(given, asked)
        for sequence, request in asked.items():
            if not self.n_left or request.n_pages > n_pages:
                asked[sequence] = replace(request, most=1, deepest=0, n_pages=0)
        found = self._of_each_drafter(asked, beside, n_pages)
        drafters = {request.speculator.drafter for request in asked.values()}
        if len(drafters) == 1 and len(found) == len(given) > 1 and not self._advances:
            self._measured = drafters.pop(), len(given)
        return found

    def _without_drafts(self, given: Sequence[tuple[ScheduledSequence, int]]) -> _PassContents:
        """What the pass contains before anything is drafted, with what is under way from earlier ones."""
        found = _PassContents()
        for work in (each.work for each in self._admission.active if each.work is not None):
            n_tokens, is_prompt = len(work.batch.tokens), work.draft is None and len(work.batch.tokens) > 1
            found.add(n_tokens, len(work.batch.outputs), is_prompt=is_prompt)
        for sequence, n_tokens in given:
            n_missing = sequence.n_missing
            n_outputs = max(1, min(n_tokens, n_missing) - sequence.n_silent)
            found.add(min(n_tokens, n_missing), n_outputs, is_prompt=n_missing > 1)
        return found

    def _n_pages(
        self, given: Sequence[tuple[ScheduledSequence, int]], asked: Mapping[ScheduledSequence, DraftRequest]
    ) -> int:
        """How many pages there are for drafts; finished answers give up theirs if need be."""
        n_needed = sum(sequence.cached.n_pages_for(min(n, sequence.n_missing)) for sequence, n in given)
        if self.n_left:
            self._admission.find_pages(n_needed + sum(request.n_pages for request in asked.values()))
        return max(0, self._pool.executor.n_free_pages - n_needed)

    def _of_each_drafter(
        self, asked: Mapping[ScheduledSequence, DraftRequest], beside: _PassContents, n_pages: int
    ) -> dict[ScheduledSequence, Drafted]:
        """Ask drafters, usually one; a later one sees what those before it have drafted."""
        n_left, n_tokens, expected = self.n_left, beside.n_tokens, float(beside.n_answers)
        found = dict[ScheduledSequence, Drafted]()
        for drafter in dict.fromkeys(request.speculator.drafter for request in asked.values()):
            own = {sequence: each for sequence, each in asked.items() if each.speculator.drafter is drafter}
            others = n_tokens - len(own), expected - len(own), beside.n_prompt
            room = DraftRoom(len(own) + n_left, n_pages, *others)
            try:
                drafts = list(zip(own.items(), drafter.draft(list(own.values()), room), strict=True))
            except Exception as reason:
                for sequence in own:
                    self._admission.fail(sequence, reason, alone=True)
                continue
            for (sequence, request), draft in drafts:
                found[sequence] = Drafted(request, draft)
                n_more = len(draft.tokens) - 1
                n_tokens, n_left = n_tokens + n_more, max(0, n_left - n_more)
                n_pages = max(0, n_pages - (request.n_pages if n_more else 0))
                expected += request.speculator.expected - 1
        return found

    def observe(self, batches: Sequence[Batch], seconds: float) -> None:
        """Note how long the pass over these batches took, which were drafted together."""
        if self._measured is not None:
            drafter, n_answers = self._measured
            if len(batches) == n_answers:
                drafter.observe(sum(len(batch.tokens) for batch in batches), seconds)

    def timed(self, sequence: ScheduledSequence, work: BatchWork, n_tokens: int) -> None:
        """Note how long an answer's pass took up to now, which it had for itself and which gave so many tokens."""
        speculator = self._timed.pop(sequence, None)
        if speculator is not None:
            speculator.timed(n_tokens, time.perf_counter() - work.started, drafted=work.draft is not None)
