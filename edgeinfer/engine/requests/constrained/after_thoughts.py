"""A constraint that begins after the thoughts of an answer, and a limit of the tokens that thoughts may have.

In: the constraint of the answer itself, or none; the marks of thoughts as tokens; whether the prompt opened a thought.
Out: a `Constraint`: thoughts are free, at the limit the mark that closes them is forced, then the answer's own
constraint holds. If the prompt opened no thought, one may begin with the first token. Knows no grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.models.text import Tokenizer


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The token that begins a thought, if it is one; the text that ends it, and the tokens this is written with."""

    begin: int | None
    end: str
    end_tokens: tuple[int, ...]


class AfterThoughts:
    """Frees the thoughts of one answer, and constrains what follows. Advances as `Constraint` says."""

    def __init__(
        self,
        inner: Constraint | None,
        marks: ThoughtMarks,
        tokenizer: Tokenizer,
        *,
        opened: bool,
        budget: int | None = None,
    ) -> None:
        """`budget`: most tokens of thoughts, without the mark that closes them; None: no limit."""
        self._inner, self._marks, self._tokenizer = inner, marks, tokenizer
        self._place: Literal["start", "thought", "answer"] = "thought" if opened else "start"
        self._budget = budget
        self._within: int | None = None
        self._n_thought = self._n_all = self._n_closing = 0
        self._tail = b""
        self._end = marks.end.encode()
        self._ends = tokenizer.vocabulary.end_of_generation

    @property
    def is_cut(self) -> bool:
        return self._inner is not None and self._inner.is_cut

    def end_within(self, n_tokens: int) -> None:
        """Leave a quarter of the tokens to an answer that must be complete."""
        self._within = n_tokens
        if self._inner is not None:
            most = max(0, n_tokens * 3 // 4 - len(self._marks.end_tokens))
            self._budget = most if self._budget is None else min(self._budget, most)

    def settled(self, token: int) -> int:
        if self._place == "thought" or self._begins(token) or self._inner is None:
            return token
        return self._entered(self._inner, self._n_all).settled(token)

    def forced(self) -> Sequence[int]:
        if self._place == "thought":
            return self._marks.end_tokens[self._n_closing :] if self._is_closing else ()
        return () if self._place == "start" or self._inner is None else self._inner.forced()

    def allows(self, token: int) -> bool:
        if self._place == "thought":
            return token == self._next_mark if self._is_closing else token not in self._ends
        return self._begins(token) or self._inner is None or self._inner.allows(token)

    def n_allowed(self, tokens: Sequence[int]) -> int:
        if not tokens:
            return 0
        if self._place == "thought":
            return self._n_thoughts_among(tokens)
        if self._begins(tokens[0]):
            return 1
        return len(tokens) if self._inner is None else self._inner.n_allowed(tokens)

    def mask(self) -> NDArray[np.bool_]:
        if self._place != "thought":
            mask = np.ones(self._tokenizer.n_tokens, bool) if self._inner is None else self._inner.mask().copy()
            if self._place == "start" and self._marks.begin is not None:
                mask[self._marks.begin] = True
            return mask
        mask = np.full(self._tokenizer.n_tokens, not self._is_closing)
        mask[list(self._ends)] = False
        if self._is_closing:
            mask[self._next_mark] = True
        return mask

    def accept(self, token: int) -> None:
        self._n_all += 1
        if self._place == "thought":
            self._think(token)
        elif self._begins(token):
            self._place = "thought"
        else:
            inner = self._inner
            if inner is not None:
                self._entered(inner, self._n_all - 1).accept(token)
            self._place = "answer"

    def _think(self, token: int) -> None:
        self._n_closing += self._is_closing
        self._n_thought += 1
        self._tail = (self._tail + self._tokenizer.piece(token))[-len(self._end) - 64 :]
        if self._n_closing == len(self._marks.end_tokens) or (not self._n_closing and self._end in self._tail):
            self._place = "answer"
            if self._inner is not None:
                self._entered(self._inner, self._n_all)

    def _entered(self, inner: Constraint, n_before: int) -> Constraint:
        """The answer's constraint, told once how many tokens are left after `n_before`."""
        if self._within is not None:
            inner.end_within(max(1, self._within - n_before))
            self._within = None
        return inner

    def _begins(self, token: int) -> bool:
        return self._place == "start" and token == self._marks.begin

    @property
    def _is_closing(self) -> bool:
        return bool(self._n_closing) or (self._budget is not None and self._n_thought >= self._budget)

    @property
    def _next_mark(self) -> int:
        return self._marks.end_tokens[self._n_closing]

    def _n_thoughts_among(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may follow, up to the one that closes the thought."""
        if self._is_closing:
            marks = self._marks.end_tokens[self._n_closing :]
            pairs = list(zip(tokens, marks, strict=False))
            return next((n for n, (token, mark) in enumerate(pairs) if token != mark), len(pairs))
        most = len(tokens) if self._budget is None else min(len(tokens), self._budget - self._n_thought)
        tail = self._tail
        for n, token in enumerate(tokens[:most]):
            if token in self._ends:
                return n
            tail += self._tokenizer.piece(token)
            if self._end in tail:
                return n + 1
        return most
