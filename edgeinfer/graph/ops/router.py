"""The choice of experts and their shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from edgeinfer.graph.op import Access, Cost, Op, OpContext
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.step import Floats

Scoring: TypeAlias = Literal["softmax", "sigmoid", "mixer"]
NEAR = 0.02
"""A mixer counts scores that are below the highest by at most this part of the larger of the two magnitudes."""


@dataclass(frozen=True, slots=True)
class Router(Op):
    """out[t, e] = the share of expert e in token t: zero except for the `active` highest of scores[t] (E scores).

    Ties go to the lower expert number. Shares are the softmax over all E scores, the sigmoid of each, or those of a
    sparse mixer (arXiv 2409.12136): experts are taken one after another, each with its share in the softmax over those
    not yet taken whose scores are `near` its own. With a `bias` per expert, experts are chosen by share + bias; the
    bias does not enter the shares (DeepSeek-V3, arXiv 2412.19437). If `normalised`, a token's shares are divided by
    their sum. All shares are multiplied by `scale`, and with `scales` by a number per expert (Gemma 4). With several
    `groups` of neighbouring experts, only experts of the `active_groups` best groups are chosen: a group is rated by
    the sum of its `rated_by` highest share + bias values, two (DeepSeek-V3) or one (DeepSeek-V2); ties go to the first
    group.
    """

    scores: str
    out: str
    experts: int
    active: int
    scoring: Scoring = "softmax"
    normalised: bool = False
    scale: float = 1.0
    bias: Weight | None = None
    groups: int = 1
    active_groups: int = 1
    scales: Weight | None = None
    rated_by: int = 2

    @property
    def accesses(self) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
        return (Access(self.scores, self.experts),), (Access(self.out, self.experts),)

    @property
    def vectors(self) -> tuple[Weight, ...]:
        return tuple(vector for vector in (self.bias, self.scales) if vector is not None)

    @property
    def cost(self) -> Cost:
        return Cost(vectors=self.vectors, n_elements=self.experts)

    def evaluate(self, context: OpContext) -> None:
        bias = None if self.bias is None else context.vector(self.bias)
        shares = self.shares(context.scored(self, self.scores), bias)
        context.values[self.out] = shares if self.scales is None else shares * context.vector(self.scales)

    def shares(self, scores: Floats, bias: Floats | None = None) -> Floats:
        """The shares of the experts in each row: float32[T, E]. `bias`: float32[E]."""
        if self.scoring == "mixer":
            return mixed(scores, self.active) * np.float32(self.scale)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = powers / powers.sum(axis=-1, keepdims=True)
        if self.scoring == "sigmoid":
            shares = np.float32(1.0) / (np.float32(1.0) + np.exp(-scores))
        ranks = scores if bias is None and self.groups == 1 else shares + (0.0 if bias is None else bias)
        ranks = self._of_best_groups(ranks) if self.groups > 1 else ranks
        chosen = np.argsort(-ranks, axis=-1, kind="stable")[:, : self.active]
        weights = np.zeros_like(shares)
        np.put_along_axis(weights, chosen, np.take_along_axis(shares, chosen, axis=-1), axis=-1)
        if self.normalised:
            weights /= weights.sum(axis=-1, keepdims=True)
        scaled: Floats = weights * np.float32(self.scale)
        return scaled

    def _of_best_groups(self, ranks: Floats) -> Floats:
        """Ranks in which experts of inactive groups come below all others: float32[T, E]."""
        grouped = ranks.reshape(len(ranks), self.groups, -1)
        quality = np.sort(grouped, axis=-1)[..., -self.rated_by :].sum(axis=-1)
        best = np.argsort(-quality, axis=-1, kind="stable")[:, : self.active_groups]
        allowed = np.zeros(quality.shape, bool)
        np.put_along_axis(allowed, best, True, axis=-1)
        lowest = np.finfo(np.float32).min
        return np.where(allowed[..., None], grouped, lowest).reshape(ranks.shape)


def mixed(scores: Floats, active: int) -> Floats:
    """The shares of a sparse mixer in each row: float32[T, E]; NaN in rows with a score that is not finite."""
    weights, left = np.zeros_like(scores), scores.copy()
    for _ in range(active):
        chosen = np.argmax(left, axis=-1, keepdims=True)
        highest = np.take_along_axis(left, chosen, axis=-1)
        is_near = highest - left <= np.float32(NEAR) * np.maximum(np.abs(scores), highest)
        np.put_along_axis(is_near, chosen, True, axis=-1)
        powers = np.where(is_near, np.exp(np.where(is_near, scores - highest, np.float32(0.0))), np.float32(0.0))
        np.put_along_axis(weights, chosen, 1 / powers.sum(axis=-1, keepdims=True, dtype=np.float32), axis=-1)
        np.put_along_axis(left, chosen, -np.inf, axis=-1)
    strange = (scores * np.float32(0.0)).sum(axis=-1, keepdims=True)
    found: Floats = np.where(weights != 0, weights + strange, np.float32(0.0))
    return found


OP = Router
