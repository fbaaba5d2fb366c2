"""One answer, from which others are forked where the model was unsure: into the likeliest tokens that it did not take.

Where to look for other ways: "forking tokens" (Bigelow et al., arXiv 2412.07961); other first tokens of greedy answers
lead to reasoning (Wang and Zhou, arXiv 2402.10200), so it is of use at temperature 0, too. All forks come from the
first answer, in the order of its tokens: which ones there are depends on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgeinfer.engine.requests.request import MOST_LOGPROBS, Request
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
from edgeinfer.engine.several.leading import Leader, LedAnswers, Strategy
from edgeinfer.errors import BadSetting
from edgeinfer.models.text import Tokenizer
from edgeinfer.scheduling.several.forking import next_uncertain, other_tokens

TRUNK = 0
"""The answer from which the others are forked."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Fork where the entropy of the model's distribution is above `entropy`, in nats.

    others: how many other tokens each place is forked into, each of a probability of at least `least`. apart: fewest
    tokens from one place to the next.
    """

    entropy: float = 1.0
    others: int = 1
    least: float = 0.05
    apart: int = 8
    reads_entropy: ClassVar[bool] = True
    reads_forks: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.entropy >= 0 and 1 <= self.others <= MOST_LOGPROBS // 2 and self.apart >= 1):
            raise BadSetting(
                f"lead uncertain: entropy must be 0 or more, others 1 to {MOST_LOGPROBS // 2}, apart 1 or more"
            )
        if not 0 <= self.least <= 1:
            raise BadSetting("lead uncertain: least is a probability, from 0 to 1")

    @property
    def n_logprobs(self) -> int | None:
        """The tokens to fork into, the chosen one, and one that may end the answer."""
        return self.others + 2

    def n_first(self, n: int) -> int:
        """One."""
        return 1

    def begin(self, n: int, request: Request, tokenizer: Tokenizer) -> Leader | None:
        """Fork the first answer."""
        return UncertainLeader(self, n, tokenizer.vocabulary.end_of_generation)


class UncertainLeader:
    """Forks the first answer until there are `n`. `ends`: tokens that end answers."""

    def __init__(self, plan: Uncertain, n: int, ends: frozenset[int]) -> None:
        self._plan, self._n, self._ends = plan, n, ends
        self._next = 0

    def look(self, answers: LedAnswers) -> None:
        """Fork at the places that are known by now."""
        trunk, is_over = answers.answers[TRUNK], TRUNK in answers.ended
        told, entropies = trunk.logprobs, trunk.entropies
        entropies = entropies[: len(told)]
        while len(answers.answers) < self._n:
            place = next_uncertain(entropies, self._plan.entropy, self._next)
            if place is None:
                self._next = max(self._next, len(entropies))
                break
            self._next = place + self._plan.apart
            self._fork(answers, place, told[place])
        if is_over or len(answers.answers) >= self._n:
            answers.expect(len(answers.answers))

    def _fork(self, answers: LedAnswers, place: int, told: TokenLogprobs) -> None:
        others = other_tokens(told.top, told.token, self._plan.others, self._plan.least, self._ends)
        for token, logprob in others[: self._n - len(answers.answers)]:
            answers.fork(TRUNK, place, (TokenLogprobs(token, logprob, told.top),))


STRATEGY = Strategy(Uncertain, "one, and forks of it where the model was unsure, into the likeliest other tokens")
