"""Rounds of runs: ours and a peer's in alternation, with the idle share around each, repeated if the machine was busy.

In: a case, the executors, and functions that run a job and return the idle share. Out: `Sample`s and `CaseFailure`s in
the order they happened. Starts no process and reads no clock itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgeinfer.app.bench.request import Case
from edgeinfer.app.bench.subject import BenchJob, BenchReply, Turns

REPEATS = 2
REPEATED_SEED = 1000
"""Added to the seed of a repeated run, as an executor may still have cached what it read before."""

Run = Callable[[str, BenchJob], BenchReply]
"""Runs a job on the named executor."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured run. `repeats`: tries that were discarded because the machine was busy."""

    case: Case
    executor: str
    reply: BenchReply
    idle_before: float
    idle_after: float
    busy: bool
    repeats: int


@dataclass(frozen=True, slots=True)
class CaseFailure:
    """A case that an executor failed in, with the problem in words."""

    case: Case
    executor: str
    problem: str


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The results of a case, in order."""

    samples: tuple[Sample, ...]
    failures: tuple[CaseFailure, ...]


class Rounds:
    """Runs cases. `idle` is asked between runs; `is_busy` says whether an idle share is too small."""

    def __init__(self, run: Run, idle: Callable[[], float], is_busy: Callable[[float], bool]) -> None:
        self._run, self._idle, self._is_busy = run, idle, is_busy
        self.last_idle = idle()

    def measure(
        self, case: Case, first: str, others: Sequence[str], before_run: Callable[[str, int], None]
    ) -> CaseResult:
        """Run a case: `first`, another, `first`, the next other …, `case.runs` times over.

        Each executor does a short warm-up first, which is not measured. An executor that fails is left out from then
        on. `before_run` is called with the name of the executor that runs next, and the round.
        """
        failures: dict[str, CaseFailure] = {}
        turns: Turns = ()
        for name in (first, *others):
            before_run(name, 0)
            reply = BenchReply() if case.test == "start" else self._run(name, _replaying(case.warm_up(), turns))
            turns = turns or reply.turns
            if reply.problem is not None:
                failures[name] = CaseFailure(case, name, reply.problem)
        samples: list[Sample] = []
        for number in range(1, case.runs + 1):
            for name in _by_turns(first, [other for other in others if other not in failures]):
                if name in failures:
                    continue
                before_run(name, number)
                sample = self._sample(case, name, case.job(number, turns))
                if sample.reply.problem is not None:
                    failures[name] = CaseFailure(case, name, sample.reply.problem)
                else:
                    samples.append(sample)
        return CaseResult(tuple(samples), tuple(failures.values()))

    def _sample(self, case: Case, name: str, job: BenchJob) -> Sample:
        """Do one run, repeated while the machine is busy; returns the quietest."""
        best: Sample | None = None
        for repeats in range(REPEATS + 1):
            before = self.last_idle
            reply = self._run(name, replace(job, seed=job.seed + REPEATED_SEED * repeats))
            self.last_idle = self._idle()
            quiet = min(before, self.last_idle)
            sample = Sample(case, name, reply, before, self.last_idle, self._is_busy(quiet), repeats)
            if best is None or quiet > min(best.idle_before, best.idle_after):
                best = sample
            if reply.problem is not None or not sample.busy:
                return sample
        assert best is not None
        return Sample(case, name, best.reply, best.idle_before, best.idle_after, True, REPEATS)


def _by_turns(first: str, others: Sequence[str]) -> list[str]:
    """`first` before each of the others; alone if there are none."""
    return [name for other in others for name in (first, other)] or [first]


def _replaying(job: BenchJob, turns: Turns) -> BenchJob:
    return replace(job, turns=turns)


def neighbours(samples: Sequence[Sample], first: str, other: str) -> list[tuple[Sample, Sample]]:
    """Runs of `other`, each paired with the run of `first` right before it."""
    pairs = itertools.pairwise(samples)
    return [(one, two) for one, two in pairs if one.executor == first and two.executor == other]


def rates(reply: BenchReply) -> Mapping[int, float]:
    """Tokens per second by number of tokens."""
    return {n: n / seconds for n, seconds in reply.seconds.items() if seconds > 0}
