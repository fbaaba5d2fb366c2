"""Constraints: which tokens a grammar or a schema allows next in an answer, step by step.

In: chosen tokens. Out: which tokens may follow, which must, and why nothing can. A constraint changes logits, never
drafts: forbidden drafted tokens are not evaluated, and the model is not run for forced ones. `Guided` is the constraint
of one of llguidance's matchers (https://github.com/guidance-ai/llguidance). Knows no grammars; `guidance` builds
constraints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.requests.drafting import Draft
from edgeinfer.errors import EdgeInferError
from edgeinfer.models.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher

MOST_FORCED = 1 << 20
"""Most bytes of an answer without a choice: as many as a grammar may have."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language, as text: a JSON schema, a regular expression, or a grammar in Lark's or llama.cpp's syntax (GBNF)."""

    kind: Literal["json", "regex", "grammar"]
    text: str


class Constraint(Protocol):
    """The constraint of one answer. `accept` advances it; `settled` may end all choice; no other method changes it."""

    @property
    def is_cut(self) -> bool:
        """Whether the answer is being closed because of `end_within`, although the model would have gone on."""
        ...

    def end_within(self, n_tokens: int) -> None:
        """Make the answer complete within `n_tokens` tokens, if it is possible to tell how.

        Call before the first token.
        """
        ...

    def settled(self, token: int) -> int:
        """The token to use where `token` was chosen: a different one if too few would remain to complete the answer."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that must follow, as far as that is certain."""
        ...

    def allows(self, token: int) -> bool:
        """Whether a token may follow; for an end-of-generation token, whether the answer may end here."""
        ...

    def n_allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may follow, one after the other; none of them ends the answer."""
        ...

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may follow: bool[V] of the tokenizer's vocabulary."""
        ...

    def accept(self, token: int) -> None:
        """Append a token. Raises EdgeInferError if it may not follow."""
        ...


def allowed_nodes(draft: Draft, constraint: Constraint) -> list[int]:
    """The nodes of a draft that may follow, root first: those whose whole path is allowed."""
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    paths: dict[int, list[int]] = {0: []}
    for node in range(1, len(tokens)):
        before = paths.get(parents[node])
        if before is None:
            continue
        path = [*before, tokens[node]]
        if constraint.n_allowed(path) == len(path):
            paths[node] = path
    return list(paths)


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
            if (problem := too_long(self._matcher)) is not None:
                raise EdgeInferError(f"the grammar could not be followed: {problem}")
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


def too_long(matcher: LLMatcher) -> str | None:
    """Why the text up to the next choice is too long to become tokens, which would take seconds; None if it is not."""
    n_bytes = len(matcher.compute_ff_bytes())
    return f"it wants {n_bytes} bytes without a choice; {MOST_FORCED} are the most" if n_bytes > MOST_FORCED else None


def problem_ahead(matcher: LLMatcher, unwritten: frozenset[int]) -> str | None:
    """Why the grammar cannot be followed up to its first choice; some unsatisfiable grammars show only there."""
    ahead = matcher.deep_copy()
    if (problem := too_long(ahead)) is not None:
        return problem
    ahead.consume_tokens(ahead.compute_ff_tokens())
    ahead.compute_bitmask()
    return problem_of(ahead, unwritten)


def first_line(text: str) -> str:
    """The first line of an llguidance error, as the rest is the whole grammar, with what a regular expression lacks."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["for an unknown reason"]
    error = next((line.removeprefix("error:") for line in lines if line.startswith("error:")), "")
    return (lines[0] + (error if lines[0].endswith(":") else ""))[:300]
