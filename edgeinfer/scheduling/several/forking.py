"""Where answers are forked: at tokens at which the model was unsure, and at which places thoughts are cut.

In: entropies of distributions, likely tokens, ends of sentences. Out: places, counted in tokens, and tokens. What is
said of a beginning of an answer stays so when more of it is known, so forks do not depend on when somebody looks. Knows
no text and no model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fork:
    """Where an answer was forked from another one. `n_tokens`: how many tokens of that one it begins with."""

    parent: int
    n_tokens: int


def next_uncertain(entropies: Sequence[float], threshold: float, start: int) -> int | None:
    """The first token from place `start` on at which the entropy is above a threshold; None if there is none so far."""
    return next((place for place in range(start, len(entropies)) if entropies[place] > threshold), None)


def other_tokens(
    likely: Sequence[tuple[int, float]], chosen: int, n: int, least: float, ends: Collection[int] = ()
) -> list[tuple[int, float]]:
    """The `n` likeliest tokens that were not chosen, of a probability of at least `least`, with log probabilities.

    `likely`: tokens and their log probabilities, the likeliest first. `ends`: tokens that end an answer, which leave
    nothing to fork.
    """
    fitting = [each for each in likely if each[0] != chosen and each[0] not in ends and math.exp(each[1]) >= least]
    return fitting[:n]


def cut_places(stops: Sequence[int], n_tokens: int, n: int) -> list[int]:
    """Up to `n` places that cut so many tokens into parts as equal as stops allow, increasing.

    `stops`: places after which a sentence is over, increasing. Each wish, 1/(n + 1), 2/(n + 1), … of the tokens, has
    the nearest stop, of equals the earlier one; without stops any place is one. Places at the ends cut nothing.
    """
    inside = [place for place in stops if 0 < place < n_tokens] or list(range(1, n_tokens))
    if not inside:
        return []
    wishes = [n_tokens * each / (n + 1) for each in range(1, n + 1)]
    return sorted({min(inside, key=lambda place: (abs(place - wish), place)) for wish in wishes})


def next_cut(stops: Sequence[int], start: int) -> int | None:
    """The first stop that is not before `start`; None if there is none so far."""
    return next((place for place in stops if place >= start), None)
