"""What a draft model has of the text of one session: what it has read, what comes next, and what it guessed.

In: the tokens of a text. Out: parts of it to evaluate. `draft_model` runs them, those of all texts of a pass together;
`head_model`, `head_chain` and `assistant` have followers for trained heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Protocol

import numpy as np

from edgeinfer.engine.kv.kvcache import pages_for
from edgeinfer.engine.requests.drafting import CachedText, RowReader
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.graph.step import Batch, Floats, Int32s


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text to evaluate; `ahead`: its last tokens, which may turn out not to belong to the text."""

    batch: Batch
    ahead: Sequence[int] = ()


class Follower(Protocol):
    """What a draft model or head has of one session's text."""

    @property
    def members(self) -> tuple[CachedSequence, ...]:
        """Its own sequences that the draft model evaluates."""
        ...

    @property
    def row_reader(self) -> RowReader | None:
        """What is given the model's hidden rows; None if they are not used."""
        ...

    def begin(self, text: Sequence[int]) -> None:
        """Start a text to continue."""
        ...

    def reach(self, text: CachedText | None, most: int) -> int:
        """How many tokens may be drafted now, at most `most`. `text`: the text in the model's cache, if that is known.

        Call it before each pass.
        """
        ...

    def unread(self, history: Sequence[int], most: int, ahead: Sequence[int]) -> TextPart | None:
        """The next part of a text that was not read yet, up to `most` tokens; None if it cannot be read.

        With logits, and with what may be ahead, if it is the last part.
        """
        ...

    def after(self, token: int, most: int, ahead: Sequence[int]) -> TextPart | None:
        """One more token, with what may be ahead, up to `most` tokens; None if it does not fit."""
        ...

    def keep(self, batch: Batch, path: Int32s) -> None:
        """Keep these tokens of the batch just evaluated."""
        ...

    def keep_row(self, row: Floats) -> None:
        """Take its own hidden row of the last token evaluated, if it goes on from that: float32[1, D]."""
        ...

    def finish(self) -> None:
        """The rounds of a pass are over."""
        ...

    def leave_out(self) -> None:
        """There is no memory for this text: free what it takes, and read nothing before there is more, or the next."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """The first `n_tokens` of a vocabulary, all that a draft model knows; in place of others it reads `stand_in`.

    The others were added later, such as marks of chats.
    """

    n_tokens: int
    stand_in: int

    def of(self, text: Sequence[int]) -> Sequence[int]:
        """A text as the draft model reads it."""
        if max(text, default=0) < self.n_tokens:
            return text
        return [token if token < self.n_tokens else self.stand_in for token in text]

    def ahead(self, tokens: Sequence[int]) -> Sequence[int]:
        """Those of the tokens that may be ahead before the first unknown one, which it cannot guess."""
        return list(takewhile(lambda token: token < self.n_tokens, tokens))


class CachedFollower:
    """The draft model's cached tokens for one session: those of the text, and those it predicted."""

    def __init__(self, cached: CachedSequence, known: KnownTokens | None = None) -> None:
        """`known`: None if it knows all tokens."""
        self.cached, self._known = cached, known
        self._n_too_few: int | None = None
        """Free pages with which it had no memory; None if it was not left out."""

    @property
    def members(self) -> tuple[CachedSequence, ...]:
        """The only sequence."""
        return (self.cached,)

    @property
    def row_reader(self) -> RowReader | None:
        """Nothing: a model reads no hidden rows."""
        return None

    def begin(self, text: Sequence[int]) -> None:
        """Start a text; each call says the whole of it."""
        self._n_too_few = None

    def reach(self, text: CachedText | None, most: int) -> int:
        """As many as asked for, whatever the text."""
        return most

    def finish(self) -> None:
        """Do nothing: what was read stays."""

    def leave_out(self) -> None:
        """As `Follower.leave_out`."""
        self.cached.forget()
        self._n_too_few = self.cached.pool.executor.n_free_pages

    def _is_left_out(self, n_tokens: int) -> bool:
        """Whether there is still no memory for a text of so many tokens."""
        if self._n_too_few is None:
            return False
        n_free = self.cached.pool.executor.n_free_pages
        if n_free <= self._n_too_few or n_free < pages_for(n_tokens):
            return True
        self._n_too_few = None
        return False

    def keep_row(self, row: Floats) -> None:
        """Do nothing: a model goes on from tokens alone."""

    def keep(self, batch: Batch, path: Int32s) -> None:
        """Commit these tokens."""
        self.cached.commit(batch, path)

    def unread(self, history: Sequence[int], most: int, ahead: Sequence[int]) -> TextPart | None:
        """As `Follower.unread`; None if the text does not fit."""
        cached = self.cached
        if most < 1 or len(history) >= cached.n_context or self._is_left_out(len(history)):
            return None
        if self._known is not None:
            history = self._known.of(history)
        position = cached.keep_prefix(history)
        part = history[position : position + most]
        if position + len(part) < len(history):
            return TextPart(cached.chain(part, wants_logits=False))
        return self._last_part(list(part), ahead[: most - len(part)])

    def after(self, token: int, most: int, ahead: Sequence[int]) -> TextPart | None:
        """As `Follower.after`; None if the context is full."""
        return None if most < 1 or self.cached.is_full else self._last_part([token], ahead[: most - 1])

    def _last_part(self, tokens: list[int], ahead: Sequence[int]) -> TextPart:
        """A part with logits after its last token, and after those ahead for which the context has room."""
        cached, n_tokens = self.cached, len(tokens)
        ahead = ahead[: max(0, cached.n_context - cached.n_cached - n_tokens)]
        if self._known is not None:
            ahead = self._known.ahead(ahead)
        batch = cached.chain([*tokens, *ahead], wants_logits=True)
        return TextPart(replace(batch, outputs=np.arange(n_tokens - 1, n_tokens + len(ahead), dtype=np.int32)), ahead)

    def close(self) -> None:
        """Free the memory."""
        self.cached.close()
