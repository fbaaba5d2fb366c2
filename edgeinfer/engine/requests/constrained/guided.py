"""A constraint backed by one of llguidance's matchers (https://github.com/guidance-ai/llguidance).

In: a matcher, chosen tokens. Out: what may follow, what must follow, and why nothing can. Knows no logits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeinfer.errors import EdgeInferError
from edgeinfer.models.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Guided:
    """A constraint backed by one of llguidance's matchers."""

    def __init__(self, matcher: LLMatcher, tokenizer: Tokenizer, unwritten: frozenset[int]) -> None:
        self._matcher, self._unwritten = matcher, unwritten
        self._n_vocab = tokenizer.n_tokens
        self._ends = tokenizer.vocabulary.end_of_generation
        self._forced: deque[int] = deque()  # asked again midway, the matcher may tokenize the same text differently

    @property
    def is_cut(self) -> bool:
        return False

    def end_within(self, n_tokens: int) -> None:
        """Do nothing: only for JSON is it known how to end an answer."""

    def settled(self, token: int) -> int:
        return token

    def forced(self) -> Sequence[int]:
        if not self._forced:
            self._forced.extend(self._matcher.compute_ff_tokens())
            if self._matcher.is_error():
                self._check()
        return tuple(self._forced)

    def allows(self, token: int) -> bool:
        if token in self._ends:
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token]) == 1

    def n_allowed(self, tokens: Sequence[int]) -> int:
        wanted = list(tokens)
        stop = next((number for number, token in enumerate(wanted) if token in self._ends), len(wanted))
        return self._matcher.validate_tokens(wanted[:stop])

    def mask(self) -> NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            self._check()
        return np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()
        if self._forced and self._forced.popleft() != token:
            self._forced.clear()

    def _check(self) -> None:
        if (problem := problem_of(self._matcher, self._unwritten)) is not None:
            raise EdgeInferError(f"the grammar could not be followed: {problem}")


def problem_of(matcher: LLMatcher, unwritten: frozenset[int]) -> str | None:
    """Why the grammar cannot be followed from here on, or None if no problem shows."""
    if matcher.is_error():
        return first_line(matcher.get_error())
    wanted = unwritten.intersection(matcher.compute_ff_bytes()) if unwritten else None
    return f"it wants the byte {min(wanted):02X}, which no token of this model writes" if wanted else None


def problem_ahead(matcher: LLMatcher, unwritten: frozenset[int]) -> str | None:
    """Why the grammar cannot be followed up to its first choice; some unsatisfiable grammars show only there."""
    ahead = matcher.deep_copy()
    ahead.consume_tokens(ahead.compute_ff_tokens())
    ahead.compute_bitmask()
    return problem_of(ahead, unwritten)


def first_line(text: str) -> str:
    """The first line of an llguidance error; the rest is the whole grammar."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "for an unknown reason")[:300]
