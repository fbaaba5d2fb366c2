"""Particles: answers that are weighed every so many tokens, of which the better ones go on more than once.

Sequential Monte Carlo steering (Lew et al., arXiv 2306.03081). The weight of a particle is the potential of what it has
written over the potential of what it had at the last resampling, so what is kept follows the sampler's distribution
times the potential. The potential is the probability that the model gives to the text, to the power of `power` - 1:
with temperature 1 and nothing cut off, texts then have their probability to the power of `power`. Or it is any function
of the text. When the weights are worth fewer particles than `share` of them, each is kept as systematic resampling
says: a particle that is kept twice is forked, one that is not is ended; one that is over stands for several. A particle
that is ahead of others is weighed by its beginning, and goes on from there, so no weight depends on speed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.several.leading import Leader, LedAnswers, Potential, Strategy
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.several.resampling import effective_size, shares, systematic


@dataclass(frozen=True, slots=True)
class Particles:
    """Weigh particles after each `every` tokens; `potential`: None for the power of the model's own probability."""

    every: int = 16
    power: float = 1.5
    share: float = 0.5
    potential: Potential | None = None
    reads_entropy: ClassVar[bool] = False
    reads_forks: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.every >= 1 and 0 <= self.power < math.inf and 0 <= self.share <= 1):
            raise BadSetting("lead particles: every must be 1 or more, power 0 or more, share from 0 to 1")

    @property
    def n_logprobs(self) -> int | None:
        """Those of the tokens themselves."""
        return 0 if self.potential is None else None

    def n_first(self, n: int) -> int:
        """All of them."""
        return n

    def begin(self, n: int, request: Request, tokenizer: Tokenizer) -> Leader | None:
        """Weigh and resample them."""
        return ParticlesLeader(self, n, request.max_tokens, random.Random(request.sampling.seed))


class ParticlesLeader:
    """Resamples `n` particles. `offsets`: draws where resampling begins."""

    def __init__(self, plan: Particles, n: int, max_tokens: int | None, offsets: random.Random) -> None:
        self._plan, self._max_tokens, self._offsets = plan, max_tokens, offsets
        self._particles = list(range(n))  # the answer of each
        self._weights, self._values = [0.0] * n, [0.0] * n  # logarithms
        self._place = plan.every

    def look(self, answers: LedAnswers) -> None:
        """Weigh the particles at every place that all of them have reached."""
        answers.expect(len(answers.answers) + len(self._particles))  # each may be kept several times
        ended = frozenset(answers.ended)
        while all(
            number in ended or self._n_known(answers.answers[number]) >= self._place for number in self._particles
        ):
            lasts = [self._is_last(answers.answers[number], number in ended) for number in self._particles]
            self._weigh(answers, lasts)
            if all(lasts):
                self._end(answers)
                return
            if effective_size(shares(self._weights)) < self._plan.share * len(self._particles):
                self._resample(answers, lasts)
            self._place += self._plan.every

    def _n_known(self, answer: TextStream) -> int:
        return len(answer.tokens) if self._plan.n_logprobs is None else len(answer.logprobs)

    def _is_last(self, answer: TextStream, is_over: bool) -> bool:
        """Whether an answer has come to its end at the place where it is weighed."""
        n_tokens = len(answer.tokens)
        return is_over and (n_tokens < self._place or n_tokens == self._max_tokens == self._place)

    def _weigh(self, answers: LedAnswers, lasts: Sequence[bool]) -> None:
        for each, (number, is_last) in enumerate(zip(self._particles, lasts, strict=True)):
            value = self._value(answers, number, is_last=is_last)
            before, self._values[each] = self._values[each], value
            self._weights[each] += value - before if before > -math.inf else value

    def _value(self, answers: LedAnswers, number: int, *, is_last: bool) -> float:
        """The logarithm of the potential of a particle here. Raises BadSetting if it is no number from 0 on."""
        if self._plan.potential is None:
            answer = answers.answers[number]
            end = answer.end_logprobs if is_last else None
            told = [*answer.logprobs[: self._place], *([] if end is None else [end])]
            return (self._plan.power - 1) * math.fsum(each.logprob for each in told)
        value = float(self._plan.potential(answers.beginning(number, self._place)))
        if not 0 <= value < math.inf:
            raise BadSetting(f"a potential cannot be {value}: it is a number from 0 on")
        return math.log(value) if value else -math.inf

    def _resample(self, answers: LedAnswers, lasts: Sequence[bool]) -> None:
        """Keep each particle as often as its weight says."""
        kept: list[tuple[int, float]] = []
        again = dict.fromkeys(self._particles, False)
        counts = systematic(shares(self._weights), self._offsets.random())
        for number, value, is_last, count in zip(self._particles, self._values, lasts, counts, strict=True):
            for _ in range(count):
                own: int | None = number
                if again[number] and not is_last:
                    own = answers.fork(number, self._place)
                again[number] = True
                kept.append((number if own is None else own, value))
        for number, is_kept in again.items():
            if not is_kept:
                answers.weigh(number, 0.0)
                answers.drop(number)
        self._particles, self._values = [number for number, _ in kept], [value for _, value in kept]
        self._weights = [0.0] * len(kept)
        answers.expect(len(answers.answers) + len(kept))

    def _end(self, answers: LedAnswers) -> None:
        """Let each answer stand for the share that its particles have."""
        told = dict.fromkeys(self._particles, 0.0)
        for number, share in zip(self._particles, shares(self._weights), strict=True):
            told[number] += share * len(self._particles)
        for number, weight in told.items():
            answers.weigh(number, weight)
        answers.expect(len(answers.answers))


STRATEGY = Strategy(Particles, "all from the start, weighed every so many tokens; the better ones go on more than once")
