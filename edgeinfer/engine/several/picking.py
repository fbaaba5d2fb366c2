"""Judging several answers while they are written: which are not needed any more, and which one is kept.

In: streams of the answers, a pick. Out: a `Choice`. Texts are told apart by what they say (`answer_forms`), checks run
in a thread of their own, so that the answers go on meanwhile. Makes no passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.several.answer_forms import Form
from edgeinfer.errors import EdgeInferError
from edgeinfer.scheduling.several.budgets import Budget
from edgeinfer.scheduling.several.forking import Fork
from edgeinfer.scheduling.several.samples import Pick, Rules, SampledAnswer, still_open

Check = Callable[[str], bool]
"""Whether an answer, its text without thoughts, is right."""
Likeness = Callable[[Sequence[str]], Sequence[float]]
"""How like the others each of some texts is, on average."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer that is kept of several, and why.

    number   its place among them, from 0 on
    reason   in words
    votes    what each says, as votes count it; None for those that say nothing, or did not come to an end
    left     those that were ended early, because they could not be chosen any more
    forks    where each was forked from another one; None for those that were written from their start
    """

    number: int
    reason: str
    votes: tuple[Hashable, ...]
    left: tuple[int, ...]
    forks: tuple[Fork | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Picking:
    """How one is kept. `check` and `likeness` are there if the pick needs them.

    `budget`: limits of all answers together, after which those that go on are ended.
    """

    pick: Pick
    form: Form
    rules: Rules = field(default_factory=Rules)
    check: Check | None = None
    likeness: Likeness | None = None
    budget: Budget = field(default_factory=Budget)


class Judge:
    """Watches the answers of one request. Close it."""

    def __init__(self, streams: Sequence[TextStream], picking: Picking, wake: Callable[[], None]) -> None:
        """`wake`: called when a check is done, from its thread."""
        self._streams, self._picking, self._wake = list[TextStream](), picking, wake
        self._forks: list[Fork | None] = []
        self._samples: list[SampledAnswer] = []
        self._summed: list[tuple[int, float]] = []
        for stream in streams:
            self.add(stream)
        self._checks: dict[int, Future[bool]] = {}
        self._checker: ThreadPoolExecutor | None = None
        self._left: set[int] = set()
        self._n_alike = 0
        self.is_spent = False
        """Whether the budget is spent, so that no more answers may begin."""
        self.n_left_out = 0
        """Answers that were wanted and did not begin, as the budget was too small."""
        self.choice: Choice | None = None

    def add(self, stream: TextStream, fork: Fork | None = None) -> None:
        """Watch one more answer. `fork`: where it was forked from another one."""
        self._streams.append(stream)
        self._forks.append(fork)
        self._summed.append((0, 0.0))
        self.expect(len(self._samples))

    def expect(self, n: int) -> None:
        """Decide nothing that could be different with `n` answers in all; those not yet there count as open."""
        n = max(n, len(self._streams))
        del self._samples[n:]
        unknown = 0.0 if "logprobs" in self._picking.pick.needs else math.nan  # no text is likelier
        self._samples += [SampledAnswer(number, logprob=unknown) for number in range(len(self._samples), n)]

    def drop(self, number: int) -> None:
        """End an answer that is not wanted any more; it is not chosen, and does not vote."""
        self._samples[number] = replace(self._samples[number], is_over=True, is_whole=False)
        self._leave((number,))

    def weigh(self, number: int, weight: float) -> None:
        """Let an answer stand for so many."""
        self._samples[number] = replace(self._samples[number], weight=weight)

    @property
    def n_unnoted_checks(self) -> int:
        """Checks that are done and were not taken into account yet."""
        return sum(check.done() and self._samples[number].passed is None for number, check in self._checks.items())

    @property
    def n_tokens(self) -> int:
        """Tokens of all answers so far, each counted once."""
        n_tokens = sum(sample.n_tokens for sample in self._samples)
        return n_tokens - sum(0 if fork is None else fork.n_tokens for fork in self._forks)

    def look(self, seconds: float, ended: Collection[int]) -> None:
        """Take into account what is new after so many seconds, and end the answers that are not needed any more.

        `ended`: the answers that are over, all of whose text was taken.
        """
        if self.choice is not None:
            return
        self._samples = [self._seen(sample, ended) for sample in self._samples]
        self._note_checks()
        self._note_likeness()
        picking = self._picking
        self.is_spent = picking.budget.is_spent(self.n_tokens, seconds)
        if self.is_spent:
            self.expect(0)
            self._leave(sample.number for sample in still_open(self._samples))
        if self.awaits_checks and not still_open(self._samples):
            return
        verdict = picking.pick.verdict(self._samples, picking.rules)
        self._leave(verdict.leave)
        if verdict.chosen is not None:
            reason = verdict.reason
            if self.is_spent and self._left:
                reason += "; the budget ended the others"
            if self.n_left_out:
                reason += f"; the budget was too small for {self.n_left_out} more"
            votes = tuple(each.answer for each in self._samples)
            n = len(self._streams)
            self.choice = Choice(verdict.chosen, reason, votes[:n], tuple(sorted(self._left)), tuple(self._forks))

    @property
    def awaits_checks(self) -> bool:
        """Whether checks of finished answers are under way."""
        return any(self._samples[number].passed is None for number in self._checks)

    def _leave(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number < len(self._streams) and self._streams[number].stats is None:
                self._left.add(number)
                self._streams[number].stop()

    def _seen(self, sample: SampledAnswer, ended: Collection[int]) -> SampledAnswer:
        """A sample as it is now."""
        if sample.is_over or sample.number >= len(self._streams):
            return sample
        stream = self._streams[sample.number]
        stats = stream.stats if sample.number in ended else None
        sample = replace(sample, n_tokens=stream.n_generated, logprob=self._logprob(sample.number))
        if stats is None:
            return sample
        is_whole = stats.finish_reason == "stop"
        answer = self._picking.form(stream.content) if is_whole else None
        sample = replace(
            sample, n_tokens=stats.n_generated, is_over=True, is_whole=is_whole, answer=answer, path=stream.tokens
        )
        if is_whole and self._picking.check is not None:
            self._begin_check(sample.number, stream.content)
        return sample

    def _logprob(self, number: int) -> float:
        """The sum of log probabilities of a sample's tokens so far; nan if they were not asked for."""
        if "logprobs" not in self._picking.pick.needs:
            return math.nan
        n_before, total = self._summed[number]
        new = self._streams[number].logprobs[n_before:]
        self._summed[number] = n_before + len(new), total + math.fsum(each.logprob for each in new)
        return self._summed[number][1]

    def _begin_check(self, number: int, text: str) -> None:
        assert self._picking.check is not None
        if self._checker is None:
            self._checker = ThreadPoolExecutor(1, "edgeinfer check")
        check = self._checker.submit(self._picking.check, text)
        self._checks[number] = check
        check.add_done_callback(lambda _: self._wake())

    def _note_checks(self) -> None:
        """Take the results of checks into account. Raises what a check raised."""
        for number, check in self._checks.items():
            if check.done() and self._samples[number].passed is None:
                self._samples[number] = replace(self._samples[number], passed=bool(check.result()))

    def _note_likeness(self) -> None:
        """Compare the whole answers, once there are as many as the pick may decide with."""
        likeness, enough = self._picking.likeness, self._picking.rules.enough
        whole = [sample for sample in self._samples if sample.is_whole]
        if likeness is None or len(whole) < 2 or len(whole) == self._n_alike:
            return
        if still_open(self._samples) and not 0 < enough <= len(whole):
            return
        self._n_alike = len(whole)
        for sample, value in zip(whole, likeness([self._streams[each.number].content for each in whole]), strict=True):
            self._samples[sample.number] = replace(sample, likeness=value)

    def close(self) -> None:
        """End the thread of checks; one under way ends by itself."""
        if self._checker is not None:
            self._checker.shutdown(wait=False, cancel_futures=True)


def chosen_of(judge: Judge) -> Choice:
    """The choice, once all answers are over. Raises EdgeInferError if there is none."""
    if judge.choice is None:
        raise EdgeInferError("nothing was chosen: the answers were ended before")
    return judge.choice
