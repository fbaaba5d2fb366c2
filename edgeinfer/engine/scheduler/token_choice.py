"""Choosing the next token: sampling within what a constraint allows, with log probabilities on request.

In: logits, and the tokens before. Out: a token, plus those that a constraint forces after it. Log probabilities are
natural logarithms, of the model's own logits before bias, penalties and temperature unless a request asks for those
with which tokens are drawn. Knows no text and no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import TypeAlias

import numpy as np

from edgeinfer.engine.requests.constrained.constraints import Constraint, allowed_nodes
from edgeinfer.engine.requests.drafting import Draft, Speculator
from edgeinfer.engine.requests.highest import no_number
from edgeinfer.engine.requests.noise import Noise
from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.requests.sampling import Distribution, LikeliestFinder, Sampler
from edgeinfer.engine.speculation.records import NO_TOKEN
from edgeinfer.errors import BadSetting
from edgeinfer.graph.step import Floats
from edgeinfer.models.text import Tokenizer

Draws: TypeAlias = list[Distribution | None]
"""What tokens were drawn from, in order; None for one that a constraint forced."""
MOST_FORCED = 256
"""Most tokens in a row that a constraint forces before the model runs again."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A chosen token with its log probability, and likely tokens with theirs, most likely first.

    A token that a grammar forced has log probability 0 and no alternatives: nothing else could follow.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class TokenChooser:
    """Chooses the tokens of one answer. `history`: the ids before it; the caller appends the chosen tokens.

    `n_room`: tokens of the answer that fit in the context. `finder`: finds likely tokens faster, if there is one.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        history: Sequence[int],
        n_room: int,
        finder: LikeliestFinder | None = None,
    ) -> None:
        self._request, self._history, self._n_prompt = request, history, len(history)
        self._n_vocab = tokenizer.n_tokens
        self.eog = tokenizer.vocabulary.end_of_generation
        self._sampler = Sampler(request.sampling, tokenizer.vocabulary.suppressed, finder)
        self._constraint = request.constraint
        if self._constraint is not None:
            most = request.max_tokens
            self._constraint.end_within(n_room if most is None else min(most, n_room))
            follow(self._constraint, request.beginning)
        self.logprobs: list[TokenLogprobs] = list(request.told)
        """Log probabilities of each token of the answer, if requested."""
        self.entropies: list[float] = []
        """Entropy of the model's distribution at each chosen token, in nats, if requested."""

    @property
    def seed(self) -> int:
        """The sampler's seed, which is drawn if the request has none."""
        return self._sampler.seed

    @property
    def noise(self) -> Noise | None:
        """The noise of the draws; None if tokens are not drawn."""
        return self._sampler.noise if self._request.sampling.temperature > 0 else None

    @property
    def is_cut(self) -> bool:
        """Whether a constraint ended the answer for lack of room."""
        return self._constraint is not None and self._constraint.is_cut

    def choose(
        self, logits: Floats, peaks: Floats | None, likeliest: Sequence[int], draws: Draws, row: int, before: list[int]
    ) -> int:
        """Choose the token after the history and `before`, from a row of logits.

        `likeliest`: as returned by `Speculator.look`. If tokens are drawn, `draws` gets what this one was drawn from.
        """
        if self._constraint is not None or self._request.logprobs is not None or self._request.entropies:
            return self._choose_allowed(logits[row, : self._n_vocab], before, draws)
        known = likeliest[row] if likeliest and self._sampler.settings.takes_likeliest else NO_TOKEN
        if known != NO_TOKEN and known not in self._sampler.suppressed:
            return known
        of_row = peaks[row] if peaks is not None and logits.shape[1] == self._n_vocab else None
        return self._chosen(logits[row, : self._n_vocab], before, draws, of_row)

    def choosing(
        self, speculator: Speculator, draft: Draft, logits: Floats, peaks: Floats | None, draws: Draws
    ) -> Callable[[int, list[int]], int]:
        """What chooses the token after each node of a draft, as `walk` asks for it: the model, or another writer."""
        likeliest = speculator.look(draft, logits, peaks)
        if (writer := speculator.writer) is None:
            return partial(self.choose, logits, peaks, likeliest, draws)
        return partial(self._choose_or_keep, writer.kept(draft, logits), logits, peaks, draws)

    def _choose_or_keep(
        self, kept: Sequence[int], logits: Floats, peaks: Floats | None, draws: Draws, row: int, before: list[int]
    ) -> int:
        """As `choose`, but the token that `kept` has for a row stays if there is one and a constraint allows it."""
        token, constraint = kept[row], self._constraint
        if token == NO_TOKEN or not self._may_follow(token):
            return self.choose(logits, peaks, (), draws, row, before)
        if constraint is not None and token not in self.eog:
            constraint.accept(token)
        if self.noise is not None:
            draws.append(None)
        own = logits[row, : self._n_vocab]
        if self._request.entropies:
            self.entropies.append(entropy_of(own))
        if (n_top := self._request.logprobs) is not None:
            self.logprobs.append(logprobs_of(own, token, n_top))
        return token

    def _may_follow(self, token: int) -> bool:
        """Whether a constraint allows a token that it did not choose."""
        if (constraint := self._constraint) is None:
            return True
        if forced := constraint.forced():
            return token == forced[0]
        return constraint.allows(token) and constraint.settled(token) == token

    def _seen(self, before: list[int]) -> Sequence[int]:
        """The tokens that penalties may look at after the history and `before`: a long history is not copied."""
        most = self._request.sampling.penalty_window
        if not before:
            return self._history
        return [*(self._history if most < 0 else self._history[max(0, len(self._history) - most) :]), *before]

    def _chosen(self, logits: Floats, before: list[int], draws: Draws, peaks: Floats | None = None) -> int:
        """The token that the sampler chooses after the history and `before`."""
        n_drawn = len(self._history) + len(before) - self._n_prompt
        token = self._sampler.choose(logits, self._seen(before), n_drawn, peaks)
        if self.noise is not None:
            draws.append(self._sampler.drawn_from)
        return token

    def _choose_allowed(self, logits: Floats, before: list[int], draws: Draws) -> int:
        """The token after these that a constraint allows, with its log probability. `logits`: float32[V]."""
        constraint, model_logits = self._constraint, logits
        forced = () if constraint is None else constraint.forced()
        if forced:
            token = forced[0]
            if self.noise is not None:
                draws.append(None)
        elif constraint is None:
            token = self._chosen(logits, before, draws)
        elif self.noise is not None or not constraint.allows(token := self._chosen(logits, before, draws)):
            logits = np.where(constraint.mask(), logits, np.float32(-np.inf))
            token = self._chosen(logits, before, draws)
        if constraint is not None and not forced:
            token = constraint.settled(token)
        if constraint is not None and token not in self.eog:
            constraint.accept(token)
        if self._request.entropies:
            self.entropies.append(0.0 if forced else entropy_of(model_logits))
        if (n_top := self._request.logprobs) is not None:
            if forced:
                told = TokenLogprobs(token, 0.0, ())
            elif self._request.after_sampling:
                told = drawn_logprobs(self._sampler.distribution(logits, self._seen(before)), token, n_top)
            else:
                told = logprobs_of(model_logits, token, n_top)
            self.logprobs.append(told)
        return token

    def add_forced(self, tokens: list[int], most: int) -> None:
        """Append the tokens that must follow, up to `most` in all; the model need not run for them."""
        constraint, most = self._constraint, min(MOST_FORCED, most)
        while constraint is not None and tokens[-1] not in self.eog and len(tokens) < most:
            forced = constraint.forced()[: most - len(tokens)]
            if not forced:
                return
            for token in forced:
                constraint.accept(token)
                tokens.append(token)
                if self._request.entropies:
                    self.entropies.append(0.0)
                if self._request.logprobs is not None:
                    self.logprobs.append(TokenLogprobs(token, 0.0, ()))

    def allowed_nodes(self, draft: Draft) -> Sequence[int] | None:
        """The nodes of a draft that the constraint allows; None if it allows all."""
        if self._constraint is None or len(draft.tokens) == 1:
            return None
        nodes = allowed_nodes(draft, self._constraint)
        return None if len(nodes) == len(draft.tokens) else nodes


def follow(constraint: Constraint, tokens: Sequence[int]) -> None:
    """Advance a constraint by tokens that were written before. Raises BadSetting if one may not follow."""
    for token in tokens:
        if not constraint.allows(token):
            raise BadSetting("what was written does not follow what the answer must match")
        constraint.accept(token)


def entropy_of(logits: Floats) -> float:
    """The entropy of the distribution that float32[V] logits state, in nats; Shannon, 1948."""
    below = logits.astype(np.float64) - float(logits.max())
    weights = np.exp(below)
    total, possible = float(weights.sum()), weights > 0
    return max(0.0, float(np.log(total)) - float(weights[possible] @ below[possible]) / total)


def drawn_logprobs(distribution: Distribution, token: int, n_top: int) -> TokenLogprobs:
    """Log probabilities of a token and of the `n_top` likeliest in the distribution that it was drawn from."""
    order = np.argsort(-distribution.probabilities, kind="stable")[:n_top]
    logprobs = np.log(distribution.probabilities)
    own = logprobs[distribution.tokens == token]
    top = zip(distribution.tokens[order].tolist(), logprobs[order].tolist(), strict=True)
    return TokenLogprobs(token, float(own[0]) if len(own) else 0.0, tuple(top))


def logprobs_of(logits: Floats, token: int, n_top: int) -> TokenLogprobs:
    """Log probabilities of a token and of the `n_top` likeliest, from float32[V] logits; of equals, lower ids first.

    Raises NotFinite.
    """
    highest = float(logits.max())  # NaN if there is one
    if not isfinite(highest):
        raise no_number(int(logits.argmax()), str(highest))
    total = highest + float(np.log(np.exp(logits - np.float32(highest), dtype=np.float64).sum()))
    top: list[int] = []
    if n_top:
        edge = np.partition(logits, len(logits) - n_top)[len(logits) - n_top]
        likely = (logits >= edge).nonzero()[0]
        top = likely[np.argsort(-logits[likely], kind="stable")][:n_top].tolist()
    return TokenLogprobs(
        token, float(logits[token]) - total, tuple((likely_id, float(logits[likely_id]) - total) for likely_id in top)
    )
