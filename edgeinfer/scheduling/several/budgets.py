"""How long answers take that are written side by side, and how many of them a budget allows.

In: the seconds of a pass by how many answers take part, tokens that answers may still have, what is left of a budget.
Out: seconds; how many more answers can begin so that all of them come to their end. Drafts are not counted on: they
share the passes with the answers, as the cost of a pass allows, and only make them fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

TogetherS = Callable[[int, float], float]
"""Seconds of a pass that gives a token to each of so many answers, with so many cached tokens each."""
DEPTH_STEP = 32
"""Cached tokens between two passes whose seconds are asked for."""


def side_by_side_s(pass_s: TogetherS, lengths: Sequence[int], n_cached: int) -> float:
    """Seconds of writing answers of these lengths side by side, one token each per pass, after `n_cached` tokens.

    Those that are over leave, so the passes become smaller.
    """
    total, done = 0.0, 0
    for length in sorted({length for length in lengths if length > 0}):
        n_open = sum(other >= length for other in lengths)
        while done < length:
            n_passes = min(DEPTH_STEP, length - done)
            total += n_passes * pass_s(n_open, n_cached + done + n_passes / 2)
            done += n_passes
    return total


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of all answers together: tokens, and seconds from the first piece requested; 0: none."""

    most_tokens: int = 0
    most_s: float = 0.0

    def is_spent(self, n_tokens: int, seconds: float) -> bool:
        """Whether a limit is reached."""
        return bool((self.most_tokens and n_tokens >= self.most_tokens) or (self.most_s and seconds >= self.most_s))

    def less(self, n_tokens: int, seconds: float) -> Budget:
        """What is left of limits that are not spent."""
        most_tokens = self.most_tokens and max(1, self.most_tokens - n_tokens)
        return Budget(most_tokens, self.most_s and max(1e-9, self.most_s - seconds))


def affordable(
    budget: Budget, under_way: Sequence[int], length: int, n_more: int, n_cached: int, pass_s: TogetherS | None
) -> int:
    """How many of `n_more` further answers can begin now and come to their end within what is left of a budget.

    `under_way`: tokens that answers may still have which have begun; `length`: those of one that begins. `pass_s`: None
    where that is unknown; seconds limit nothing then.
    """
    for n in range(n_more, 0, -1):
        lengths = [*under_way, *[length] * n]
        fits = not budget.most_tokens or sum(lengths) <= budget.most_tokens
        if fits and budget.most_s and pass_s is not None:
            fits = side_by_side_s(pass_s, lengths, n_cached) <= budget.most_s
        if fits:
            return n
    return 0
