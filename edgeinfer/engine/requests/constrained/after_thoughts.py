"""A constraint that begins after the thoughts of an answer, and a limit of the tokens that thoughts may have.

In: the constraint of the answer itself, or none; the marks of thoughts as tokens; whether the prompt opened a thought.
Out: a `Constraint`: thoughts are free, at the limit the mark that closes them is forced, then the marks that the family
puts before answers, then the answer's own constraint holds. If the prompt opened no thought, one may begin first. Knows
no grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgeinfer.engine.requests.constrained.constraints import Constraint
from edgeinfer.models.text import Tokenizer
from edgeinfer.models.text.thought_formats import ThoughtFormat

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The marks of thoughts as tokens.

    begin: what begins a thought; () if plain text would be tokenized to the same. end: the text that ends it. closing:
    what is forced at the limit. lead: what comes before an answer without a thought, and after: before one that follows
    a thought. anywhere: a thought may also begin later in an answer.
    """

    begin: Tokens
    end: str
    closing: Tokens
    lead: Tokens = ()
    after: Tokens = ()
    anywhere: bool = False

    @classmethod
    def of(cls, form: ThoughtFormat, tokenizer: Tokenizer, lead: str) -> ThoughtMarks:
        """The marks of a family. `lead`: what it writes before the kind of answer that is to come."""

        def tokens(text: str) -> Tokens:
            return tuple(tokenizer.encode(text, add_special=False, goes_on=True))

        begin = tokens(form.begin)
        if len(begin) > 1 and not tokenizer.vocabulary.is_control(begin[0]):
            begin = ()
        after = f"{form.turn}{lead}" if form.dropped else lead
        return cls(begin, form.end, tokens(f"{form.end}{form.turn}{lead}"), tokens(lead), tokens(after), form.anywhere)


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
        self._n_thought = self._n_all = 0
        self._due: Tokens = ()
        """What must follow before the answer's own constraint begins."""
        self._said: Tokens = ()
        """The last tokens, as many as begin a thought or an answer."""
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
            most = max(0, n_tokens * 3 // 4 - len(self._marks.closing))
            self._budget = most if self._budget is None else min(self._budget, most)

    def settled(self, token: int) -> int:
        if self._forced() or self._place == "thought" or self._inner is None:
            return token
        if self._place == "start" and (token in self._openings() or not self._is_open):
            return token
        return self._entered(self._inner, self._n_all).settled(token)

    def forced(self) -> Sequence[int]:
        if self._forced():
            return self._forced()
        if self._inner is None or self._place == "thought":
            return ()
        if self._place == "answer":
            return self._inner.forced()
        return tuple(self._openings()) if len(self._openings()) == 1 and not self._is_open else ()

    def allows(self, token: int) -> bool:
        if self._forced():
            return token == self._forced()[0]
        if self._place == "thought":
            return token not in self._ends
        if self._inner is None:
            return not self._begins_again(token)
        if self._place == "answer":
            return self._inner.allows(token)
        return token in self._openings() or (self._is_open and self._inner.allows(token))

    def n_allowed(self, tokens: Sequence[int]) -> int:
        if not tokens:
            return 0
        if due := self._forced():
            return _n_same(tokens, due)
        if self._place == "thought":
            return self._n_thoughts_among(tokens)
        if self._inner is None:
            return self._n_free_among(tokens)
        if self._place == "answer":
            return self._inner.n_allowed(tokens)
        if tokens[0] in self._openings():
            return 1
        return self._inner.n_allowed(tokens) if self._is_open else 0

    def mask(self) -> NDArray[np.bool_]:
        if self._forced():
            return self._only(self._forced()[:1])
        if self._place == "thought":
            return ~self._only(self._ends)
        if self._inner is None:
            return ~self._only([token for token in self._marks.begin if self._begins_again(token)])
        if self._place == "answer":
            return self._inner.mask()
        opening = self._only(self._openings())
        return opening | self._inner.mask() if self._is_open else opening

    def accept(self, token: int) -> None:
        self._n_all += 1
        due = self._forced()
        if due:
            self._place, self._due = "answer", due[1:]
            self._begin_answer()
        elif self._place == "thought":
            self._think(token)
        elif self._inner is None:
            self._note(token)
        elif self._place == "answer" or (self._is_open and token not in self._openings()):
            self._entered(self._inner, self._n_all - 1).accept(token)
            self._place = "answer"
        else:
            self._open(token)

    def _forced(self) -> Tokens:
        """What must follow, whatever the answer's constraint says."""
        return self._marks.closing if self._place == "thought" and self._is_full else self._due

    @property
    def _is_full(self) -> bool:
        return self._budget is not None and self._n_thought >= self._budget

    @property
    def _is_open(self) -> bool:
        """Whether the answer's own first token may follow."""
        return self._said == self._marks.lead

    def _openings(self) -> set[int]:
        """The tokens that go on with what begins a thought, or what comes before an answer."""
        n_said = len(self._said)
        ways = (self._marks.begin, self._marks.lead)
        return {way[n_said] for way in ways if len(way) > n_said and way[:n_said] == self._said}

    def _open(self, token: int) -> None:
        """Take a token at the start of a constrained answer."""
        self._said += (token,)
        if self._said == self._marks.begin:
            self._begin_thought()
        elif self._is_open and not self._openings():
            self._place = "answer"
            self._begin_answer()

    def _note(self, token: int) -> None:
        """Take a token outside of thoughts that nothing constrains."""
        n_begin = len(self._marks.begin)
        self._said = (*self._said, token)[-n_begin:] if n_begin else ()
        if n_begin and self._said == self._marks.begin and (self._marks.anywhere or self._n_all == n_begin):
            self._begin_thought()
        else:
            self._place = "start" if self._n_all < n_begin else "answer"

    def _begins_again(self, token: int) -> bool:
        """Whether a token would begin a further thought although the limit is reached."""
        begin = self._marks.begin
        if not (begin and self._is_full and self._place == "answer" and self._marks.anywhere):
            return False
        told = min(1, len(begin) - 1)  # the first token that tells a thought from other channels
        return token == begin[told] and self._said[len(self._said) - told :] == begin[:told]

    def _begin_thought(self) -> None:
        self._place, self._said, self._tail = "thought", (), b""

    def _begin_answer(self) -> None:
        if self._inner is not None and not self._due:
            self._entered(self._inner, self._n_all)

    def _think(self, token: int) -> None:
        self._n_thought += 1
        self._tail = (self._tail + self._tokenizer.piece(token))[-len(self._end) - 64 :]
        if self._end in self._tail:
            self._place, self._due = "answer", () if self._inner is None else self._marks.after
            self._begin_answer()

    def _entered(self, inner: Constraint, n_before: int) -> Constraint:
        """The answer's constraint, told once how many tokens are left after `n_before`."""
        if self._within is not None:
            inner.end_within(max(1, self._within - n_before))
            self._within = None
        return inner

    def _only(self, tokens: Sequence[int] | set[int] | frozenset[int]) -> NDArray[np.bool_]:
        mask = np.zeros(self._tokenizer.n_tokens, np.bool_)
        mask[list(tokens)] = True
        return mask

    def _n_free_among(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may follow where nothing is constrained, up to what may begin a thought."""
        if self._place == "answer" and not self._marks.anywhere:
            return len(tokens)
        begun = next((n for n, token in enumerate(tokens) if token in self._marks.begin), len(tokens))
        return max(begun, int(self.allows(tokens[0])))

    def _n_thoughts_among(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may follow, up to the one that closes the thought."""
        most = len(tokens) if self._budget is None else min(len(tokens), self._budget - self._n_thought)
        tail = self._tail
        for n, token in enumerate(tokens[:most]):
            if token in self._ends:
                return n
            tail += self._tokenizer.piece(token)
            if self._end in tail:
                return n + 1
        return most


def _n_same(tokens: Sequence[int], due: Sequence[int]) -> int:
    pairs = list(zip(tokens, due, strict=False))
    return next((n for n, (token, mark) in enumerate(pairs) if token != mark), len(pairs))
