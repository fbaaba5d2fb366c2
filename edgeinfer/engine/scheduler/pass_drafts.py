"""Drafts of a pass: which answers draft in it, how much room their drafts have, and how long it took.

In: the answers of the next pass with their tokens. Out: their drafts, which share the room so as to raise the tokens
per second of all answers together. A draft takes pages of the KV cache until the pass is over, and a row of logits for
each token: there are as many as the pass has outputs, and pages that are free. Runs no passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgeinfer.engine.requests.drafting import Drafted, DraftRequest, DraftRoom, PassDrafter
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.admission import Admission
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.graph.step import Batch

DRAFTS_BESIDE = 32
"""Nothing is drafted in a pass with more prompt tokens than this: it takes long enough already."""


class PassDrafts:
    """Asks for drafts. `advances`: passes do not wait for all answers, so nothing is drafted."""

    def __init__(self, pool: Pool, admission: Admission, *, advances: bool) -> None:
        self._pool, self._admission, self._advances = pool, admission, advances
        self._limits = pool.executor.limits
        self.n_left = 0
        """Tokens that the pass has room for beside one of each answer and what is read of prompts."""
        self._measured: tuple[PassDrafter, int] | None = None

    def drafted(self, given: Sequence[tuple[ScheduledSequence, int]]) -> dict[ScheduledSequence, Drafted]:
        """The drafts of the next pass; each answer may have so many tokens of its prompt in it.

        An error fails the answers that it concerns.
        """
        self._measured, self.n_left = None, 0
        if self._advances:
            return {}
        asked = {sequence: request for sequence, _ in given if (request := sequence.draft_request()) is not None}
        n_read = sum(min(n, sequence.n_missing) for sequence, n in given if sequence not in asked)
        n_prompt = sum(min(n, sequence.n_missing) for sequence, n in given if sequence.n_missing > 1)
        n_tokens = len(asked) + n_read
        self.n_left = max(0, min(self._limits.max_outputs, self._limits.max_tokens) - n_tokens)
        if n_prompt > DRAFTS_BESIDE:
            self.n_left = 0
        if not asked:
            return {}
        n_pages = self._n_pages(given, asked)
        for sequence, request in asked.items():
            if not self.n_left or request.n_pages > n_pages:
                asked[sequence] = replace(request, most=1, deepest=0, n_pages=0)
        return self._of_each_drafter(asked, n_tokens, len(given), n_pages)

    def _n_pages(
        self, given: Sequence[tuple[ScheduledSequence, int]], asked: Mapping[ScheduledSequence, DraftRequest]
    ) -> int:
        """How many pages there are for drafts; finished answers give up theirs if need be."""
        n_needed = sum(sequence.cached.n_pages_for(min(n, sequence.n_missing)) for sequence, n in given)
        if self.n_left:
            self._admission.find_pages(n_needed + sum(request.n_pages for request in asked.values()))
        return max(0, self._pool.executor.n_free_pages - n_needed)

    def _of_each_drafter(
        self, asked: Mapping[ScheduledSequence, DraftRequest], n_tokens: int, n_answers: int, n_pages: int
    ) -> dict[ScheduledSequence, Drafted]:
        """Ask drafters, usually one; a later one sees what those before it have drafted."""
        n_left, expected, found = self.n_left, float(n_answers), dict[ScheduledSequence, Drafted]()
        drafters = list(dict.fromkeys(request.speculator.drafter for request in asked.values()))
        for drafter in drafters:
            own = {sequence: each for sequence, each in asked.items() if each.speculator.drafter is drafter}
            room = DraftRoom(len(own) + n_left, n_pages, n_tokens - len(own), expected - len(own))
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
        if len(drafters) == 1 and len(found) == n_answers > 1:
            self._measured = drafters[0], n_answers
        return found

    def observe(self, batches: Sequence[Batch], seconds: float) -> None:
        """Note how long the pass over these batches took, which were drafted together."""
        if self._measured is not None:
            drafter, n_answers = self._measured
            if len(batches) == n_answers:
                drafter.observe(sum(len(batch.tokens) for batch in batches), seconds)
