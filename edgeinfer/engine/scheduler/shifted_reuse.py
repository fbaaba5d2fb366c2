"""Reuse after a changed line: text that stands elsewhere in what others have cached is taken from there, not read.

In: answers as they begin, go on and end. Out: sequences that continue with such runs of tokens when they have read what
comes before them. For requests that ask for it alone (`reuse` "shifted"), as these tokens are not exact: they were read
after another text. Sources: position-independent caching, EPIC (Hu et al., arXiv 2410.15332), CacheBlend (Yao et al.,
arXiv 2405.16444).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.scheduler.matching_runs import LEAST_RUN, MatchingRun, matching_runs
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.errors import DoesNotFit

REREAD = 16
"""Tokens at the beginning of a run that are read: they depend most on the changed text before them."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that an answer will take, and a branch of the sequence that has it."""

    run: MatchingRun
    holder: CachedSequence


class ShiftedReuse:
    """What the answers of one pool still take from elsewhere; needs the engine's lock."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._plans: dict[ScheduledSequence, list[PlannedRun]] = {}
        self._previous: dict[ScheduledSequence, CachedSequence] = {}
        """What the sequences of answers had cached before these began, as far as it may be of use."""

    def begin(self, sequence: ScheduledSequence) -> None:
        """Note an answer that is about to begin, and to drop what its own sequence has cached of other texts."""
        cached, request = sequence.cached, sequence.request
        if request.reuse == "shifted":
            n_same = cached.n_common(request.prompt, request.scales, exact=False)
            if cached.n_cached - n_same >= LEAST_RUN:
                self._previous[sequence] = cached.branch()

    def plan(self, sequence: ScheduledSequence) -> None:
        """Look for runs of the part of an answer's prompt that is not cached."""
        cached, request = sequence.cached, sequence.request
        if request.reuse != "shifted" or request.scored_from is not None:
            return
        sequence.n_shifted = cached.n_cached - cached.n_exact
        donors = [each for each in self._pool.members if each is not cached and each.scales == request.scales]
        donors.sort(key=lambda each: each.n_exact == each.n_cached)
        texts = [each.tokens for each in donors]
        found = matching_runs(request.prompt, cached.n_cached, len(request.prompt) - 1, texts)
        plan = self._plans[sequence] = list[PlannedRun]()
        for run in found:
            plan.append(PlannedRun(run.without(REREAD), donors[run.text].branch()))
        self._close_previous(sequence)

    def advance(self, sequence: ScheduledSequence, most_tokens: int) -> int:
        """Take the run that follows what is cached, if there is one; returns how many tokens may be read after it."""
        plan = self._plans.get(sequence, [])
        while plan and plan[0].run.start <= sequence.cached.n_cached:
            planned = plan.pop(0)
            if planned.run.start == sequence.cached.n_cached:
                self._take(sequence, planned)
            planned.holder.close()
        return min(most_tokens, plan[0].run.start - sequence.cached.n_cached) if plan else most_tokens

    def drop(self, sequence: ScheduledSequence) -> None:
        """Forget what an answer was to take."""
        for planned in self._plans.pop(sequence, ()):
            planned.holder.close()
        self._close_previous(sequence)

    def _close_previous(self, sequence: ScheduledSequence) -> None:
        previous = self._previous.pop(sequence, None)
        if previous is not None:
            previous.close()

    def _take(self, sequence: ScheduledSequence, planned: PlannedRun) -> None:
        """Take a run; if it cannot be had, the answer reads it."""
        cached, holder, run = sequence.cached, planned.holder, planned.run
        while holder.n_cached >= run.source + run.n_tokens:  # else others needed the memory
            try:
                if cached.append_shifted(holder, run.source, run.n_tokens):
                    sequence.n_reused += run.n_tokens
                    sequence.n_shifted += run.n_tokens
                return
            except DoesNotFit:
                if not self._pool.make_room((cached, holder)):
                    return
