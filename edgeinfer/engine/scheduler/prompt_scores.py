"""Log probabilities of a prompt's own tokens, as passes over it give their logits.

In: the logits of each pass, a row for each token whose successor is asked about. Out: `TokenLogprobs`, one by one in
the prompt's order. Rows are reduced at once, none are kept. Knows no cache: a prompt may be read in parts of any size,
and again from anywhere if its memory was taken.
"""

from __future__ import annotations

from edgeinfer.engine.requests.request import Request
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs, logprobs_of
from edgeinfer.graph.step import Batch, Floats


class PromptScores:
    """Collects the log probabilities that a request asks for of its prompt; none if it does not."""

    def __init__(self, request: Request, n_vocab: int) -> None:
        self._prompt, self._n_vocab, self._n_top = request.prompt, n_vocab, request.logprobs or 0
        self._first = len(request.prompt) if request.scored_from is None else request.scored_from
        self.found: list[TokenLogprobs] = []
        """Those known so far, from the first token that was asked about."""
        self.n_unread = int(request.max_tokens == 0 and not self.is_whole)
        """1 if the last token need not be read, as nothing is asked about what follows it."""

    @property
    def _next(self) -> int:
        """The number of the next token to score."""
        return self._first + len(self.found)

    @property
    def is_whole(self) -> bool:
        """Whether none is missing."""
        return self._next >= len(self._prompt)

    def n_silent(self, n_cached: int, n_missing: int) -> int:
        """How many of the `n_missing` tokens after the cached ones need no logits."""
        if self.is_whole:
            return max(0, n_missing - 1)
        return max(0, self._next - 1 - n_cached)

    def take(self, batch: Batch, logits: Floats) -> int:
        """Note what the rows of a chain say of the prompt; returns how many rows did. `logits`: float32[O, V]."""
        if self.is_whole:
            return 0
        n_taken = 0
        for position, row in zip(batch.positions[batch.outputs].tolist(), logits, strict=True):
            if position + 1 == len(self._prompt):
                break
            self.found.append(logprobs_of(row[: self._n_vocab], self._prompt[position + 1], self._n_top))
            n_taken += 1
        return n_taken
