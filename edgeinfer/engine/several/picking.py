"""Judging several answers while they are written: which are not needed any more, and which one is kept.

In: streams of the lanes, a pick. Out: a `Choice`. Texts are told apart by what they say (`answer_forms`), checks run in
a thread of their own, so that the lanes go on meanwhile. Makes no passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.several.answer_forms import Form
from edgeinfer.errors import EdgeInferError
from edgeinfer.scheduling.several.lanes import Lane, Pick, Rules, still_open

Check = Callable[[str], bool]
"""Whether an answer, its text without thoughts, is right."""
Likeness = Callable[[Sequence[str]], Sequence[float]]
"""How like the others each of some texts is, on average."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The answer that is kept of several, and why.

    number   its place among them, from 0 on
    reason   in words
    answers  what each says, as votes count it; None for those that say nothing, or did not come to an end
    left     those that were ended early, because they could not be chosen any more
    """

    number: int
    reason: str
    answers: tuple[Hashable, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Picking:
    """How one is kept. `check` and `likeness` are there if the pick needs them.

    `most_tokens`, `most_s`: of all lanes together, after which those that go on are ended; 0: no limit.
    """

    pick: Pick
    form: Form
    rules: Rules = field(default_factory=Rules)
    check: Check | None = None
    likeness: Likeness | None = None
    most_tokens: int = 0
    most_s: float = 0.0


class Judge:
    """Watches the lanes of one request. Close it."""

    def __init__(self, streams: Sequence[TextStream], picking: Picking, wake: Callable[[], None]) -> None:
        """`wake`: called when a check is done, from its thread."""
        self._streams, self._picking, self._wake = streams, picking, wake
        self._lanes = [Lane(number) for number in range(len(streams))]
        self._summed = [(0, 0.0)] * len(streams)
        self._checks: dict[int, Future[bool]] = {}
        self._checker: ThreadPoolExecutor | None = None
        self._left: set[int] = set()
        self._n_alike = 0
        self.choice: Choice | None = None

    @property
    def n_unnoted_checks(self) -> int:
        """Checks that are done and were not taken into account yet."""
        return sum(check.done() and self._lanes[number].passed is None for number, check in self._checks.items())

    @property
    def n_tokens(self) -> int:
        """Tokens of all lanes so far."""
        return sum(lane.n_tokens for lane in self._lanes)

    def look(self, seconds: float) -> None:
        """Take into account what is new after so many seconds, and end the lanes that are not needed any more."""
        if self.choice is not None:
            return
        self._lanes = [self._seen(lane) for lane in self._lanes]
        self._note_checks()
        self._note_likeness()
        picking = self._picking
        is_spent = 0 < picking.most_tokens <= self.n_tokens or 0 < picking.most_s <= seconds
        if is_spent:
            self._leave(lane.number for lane in still_open(self._lanes))
        if self.awaits_checks and not still_open(self._lanes):
            return
        verdict = picking.pick.verdict(self._lanes, picking.rules)
        self._leave(verdict.leave)
        if verdict.chosen is not None:
            reason = f"{verdict.reason}; the budget ended the others" if is_spent else verdict.reason
            answers = tuple(lane.answer for lane in self._lanes)
            self.choice = Choice(verdict.chosen, reason, answers, tuple(sorted(self._left)))

    @property
    def awaits_checks(self) -> bool:
        """Whether checks of finished lanes are under way."""
        return any(self._lanes[number].passed is None for number in self._checks)

    def _leave(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self._streams[number].stats is None:
                self._left.add(number)
                self._streams[number].stop()

    def _seen(self, lane: Lane) -> Lane:
        """A lane as it is now."""
        stream = self._streams[lane.number]
        if lane.is_over:
            return lane
        stats = stream.stats
        lane = replace(lane, n_tokens=stream.live.n_generated, logprob=self._logprob(lane.number))
        if stats is None:
            return lane
        is_whole = stats.finish_reason == "stop"
        answer = self._picking.form(stream.content) if is_whole else None
        lane = replace(
            lane, n_tokens=stats.n_generated, is_over=True, is_whole=is_whole, answer=answer, path=stream.tokens
        )
        if is_whole and self._picking.check is not None:
            self._begin_check(lane.number, stream.content)
        return lane

    def _logprob(self, number: int) -> float:
        """The sum of log probabilities of a lane's tokens so far; nan if they were not asked for."""
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
            if check.done() and self._lanes[number].passed is None:
                self._lanes[number] = replace(self._lanes[number], passed=bool(check.result()))

    def _note_likeness(self) -> None:
        """Compare the whole answers, once there are as many as the pick may decide with."""
        likeness, enough = self._picking.likeness, self._picking.rules.enough
        whole = [lane for lane in self._lanes if lane.is_whole]
        if likeness is None or len(whole) < 2 or len(whole) == self._n_alike:
            return
        if still_open(self._lanes) and not 0 < enough <= len(whole):
            return
        self._n_alike = len(whole)
        for lane, value in zip(whole, likeness([self._streams[each.number].content for each in whole]), strict=True):
            self._lanes[lane.number] = replace(lane, likeness=value)

    def close(self) -> None:
        """End the thread of checks; one under way ends by itself."""
        if self._checker is not None:
            self._checker.shutdown(wait=False, cancel_futures=True)


def chosen_of(judge: Judge) -> Choice:
    """The choice, once all lanes are over. Raises EdgeInferError if there is none."""
    if judge.choice is None:
        raise EdgeInferError("nothing was chosen: the answers were ended before")
    return judge.choice
