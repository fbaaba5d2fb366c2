"""A trained head, or one block of several, as a draft model.

In: the head, and hidden rows of each token that the model adds to a text. Out: a `DraftModel` whose chains continue
what the model knows: the head reads a token with the model's row of the token before it; where that row is not known
yet, since the model has not evaluated the token, with its own. Rows are kept until the head reads them, a limited
number; where rows are missing, the head's text has a gap, and guesses are a little worse. Source of the computations:
`models.trained_heads`, `models.eagle3`; `assistant` follows texts for heads without a cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgeinfer.engine.requests.drafting import CachedText
from edgeinfer.engine.requests.prompt_rows import n_common
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.speculation.assistant import AssistantFollower
from edgeinfer.engine.speculation.draft_followers import CachedFollower, Follower, TextPart
from edgeinfer.engine.speculation.draft_model import DraftModel
from edgeinfer.engine.speculation.drafters import Drafter, trained_head
from edgeinfer.engine.speculation.records import TOKEN_MASK
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.models.trained_heads import HIDDEN, TrainedHead

MOST_WAITING = 1024
"""Rows that wait for the head to read them; of a longer prompt it reads the end."""
LAST_ONES = 2
"""Rows that an assistant has of a text: the model's last one, and its own."""
NO_TOKEN = -1


def waiting_bytes(head: TrainedHead, n_sessions: int, max_tokens: int) -> int:
    """Most bytes of rows that wait for the blocks of a head, of sessions with passes of up to `max_tokens`.

    Before the oldest of MOST_WAITING rows there may be others in the memory of the same pass.
    """
    widths = (block.apart or block.spec.inputs.hidden_width for block in head.blocks)
    n_rows = LAST_ONES if head.spec.reads_kv else MOST_WAITING + max_tokens
    return 4 * n_sessions * n_rows * sum(widths)


class Head(DraftModel):
    """A trained head, for all sessions. Close it."""

    def __init__(
        self, executor: SequenceEvaluator, own: str, head: TrainedHead, tokens: Int32s, close: Callable[[], None]
    ) -> None:
        """`own`: fingerprint of its file. `tokens`: the model's token for each of its own."""
        super().__init__(executor, own, len(tokens), close)
        self._head, self._tokens, self._showing = head, tokens, executor.capabilities.showing

    @property
    def executor(self) -> SequenceEvaluator:
        """What evaluates it."""
        return self._pool.executor

    @property
    def drafter(self) -> Drafter:
        """What proposes its guesses."""
        return trained_head.DRAFTER

    def session(self) -> Follower:
        """The head's state for one more session."""
        return AssistantFollower() if self._head.spec.reads_kv else self.block_session(None)

    def block_session(self, later: HeadFollower | None) -> HeadFollower:
        """As `session`; `later`: of the block that reads the rows of this one."""
        return HeadFollower(self._pool.open(), self._head, later, self._hidden_rows)

    def _hidden_rows(self) -> Floats:
        """Its rows of all tokens of the last pass, if a later block reads them: float32[T, D]."""
        assert self._showing is not None
        return self._showing.show(HIDDEN)

    def _highest(self, logits: Floats) -> tuple[Int32s, Floats]:
        """The same, with the model's tokens in place of its own."""
        packed, highest = super()._highest(logits)
        own = packed & TOKEN_MASK
        return packed - own + self._tokens[own], highest

    def _own_rows(self) -> Floats:
        assert self._showing is not None
        return self._showing.show(self._head.next_rows)


class HeadFollower(CachedFollower):
    """What a head has read of one session's text, and the model's rows that it has not read yet."""

    def __init__(
        self,
        cached: CachedSequence,
        head: TrainedHead,
        later: HeadFollower | None = None,
        hidden_rows: Callable[[], Floats] | None = None,
    ) -> None:
        """`later`: the follower of a later block, which is given this one's rows, as `hidden_rows` shows them."""
        super().__init__(cached)
        self._later, self._hidden_rows = later, hidden_rows
        self._reading: list[int] = []
        """Positions of the tokens that are being read."""
        self._apart, self._width = head.apart, head.spec.inputs.hidden_width
        self._text: list[int] = []
        """The tokens that the model has evaluated; NO_TOKEN where they are unknown."""
        self._waiting: deque[tuple[int, Floats]] = deque()
        """Rows of the model from a position on."""
        self._places: list[int] = []
        """Positions in the text of the cached tokens that were read with the model's rows, increasing;"""
        self._tokens: list[int] = []
        """and these tokens."""
        self._next: Floats = np.zeros((0, 0), np.float32)
        """The head's own row of the last token that it read."""

    @property
    def row_reader(self) -> HeadFollower:
        """What is given the model's rows."""
        return self

    def begin(self, text: Sequence[int]) -> None:
        """Start a text to continue; what was read of the last one stays as far as the two agree."""
        super().begin(text)
        self._forget(n_common(self._text, list(text)))

    def note(self, first: int, tokens: Sequence[int], rows: Floats, text: CachedText | None = None) -> None:
        """Take the model's rows of tokens that continue the text from position `first` on."""
        if first > len(self._text):  # others read what lies between: nothing is known of it
            self._forget(0)
            self._text = [NO_TOKEN] * first
        elif first < len(self._text):
            is_same = self._text[first] == tokens[0]  # as where the model reads the last token of a known text again
            self._forget(first, first + is_same)
        self._text += tokens
        self._waiting.append((first, rows))
        n_waiting = sum(len(each) for _, each in self._waiting)
        while n_waiting > MOST_WAITING and len(self._waiting) > 1:
            n_waiting -= len(self._waiting.popleft()[1])

    def keep_row(self, row: Floats) -> None:
        """Take its own hidden row of the last token evaluated: float32[1, D]."""
        self._next = row

    def close(self) -> None:
        """Free the memory, that of the rows too."""
        super().close()
        self._waiting.clear()

    def keep(self, batch: Batch, path: Int32s) -> None:
        """Commit these tokens, and give their rows to the later block."""
        super().keep(batch, path)
        if self._later is None or self._hidden_rows is None:
            return
        rows, tokens, places = self._hidden_rows()[path], batch.tokens[path].tolist(), np.array(self._reading)
        for run in np.split(np.arange(len(places)), np.flatnonzero(np.diff(places) != 1) + 1):
            first, stop = int(run[0]), int(run[-1]) + 1
            self._later.note(int(places[first]), tokens[first:stop], rows[first:stop])

    def trim(self, history: Sequence[int]) -> None:
        """Forget what is not of this text: tokens that an earlier block had guessed."""
        n_unknown = next((place for place, token in enumerate(self._text) if token != NO_TOKEN), len(self._text))
        self._text[:n_unknown] = history[:n_unknown]
        position = n_common(self._text, list(history))
        n_read = bisect_left(self._places, position)
        while self._is_read(n_read, history):
            n_read += 1
        self._forget(position, self._places[n_read] if n_read < len(self._places) else len(history))

    def _is_read(self, number: int, history: Sequence[int]) -> bool:
        """Whether there is a token read with that number, and it is the text's."""
        if number >= len(self._places) or self._places[number] >= len(history):
            return False
        return history[self._places[number]] == self._tokens[number]

    def unread(self, history: Sequence[int], most: int, ahead: Sequence[int], n_guessed: int = 0) -> TextPart | None:
        """The next part of a text that was not read yet, up to `most` tokens; None if the rows for it are unknown.

        What may be ahead is not evaluated with it, as the rows that it needs are not known before. `n_guessed`: how
        many tokens at the end earlier blocks have guessed; rows stay until it is known whether these were right.
        """
        cached, end = self.cached, len(history) - 1
        if most < 1 or end >= cached.n_context or self._is_left_out(len(history)):
            return None
        if NO_TOKEN in self._text[:1]:
            self._text = list(history[: len(self._text)])
        self._keep(min(len(self._places), cached.n_cached, bisect_left(self._places, end)))
        if cached.n_cached > len(self._places):  # what it guessed last time; a window may not go back so far
            self._keep(cached.keep_prefix([*self._tokens, NO_TOKEN]))
        part, rows = self._unread(end, most)
        if not part:
            return None
        tokens = [history[place] for place in part]
        chain = cached.chain(tokens, wants_logits=part[-1] == end)
        self._places += part
        self._tokens += tokens
        self._reading = part
        self._drop_read(min(part[-1], end - max(0, n_guessed - 1)))
        return TextPart(replace(chain, hidden=self._padded(rows)))

    def after(self, token: int, most: int, ahead: Sequence[int]) -> TextPart | None:
        """One more token, which the model has not evaluated; None if it does not fit."""
        if most < 1 or self.cached.is_full:
            return None
        chain = self.cached.chain((token,), wants_logits=True)
        return TextPart(replace(chain, hidden=self._padded(self._next, self._apart)))

    def _padded(self, rows: Floats, first: int = 0) -> Floats:
        """Rows in columns from `first` on, with zeros in the other columns."""
        if rows.shape[1] == self._width:
            return rows
        padded = np.zeros((len(rows), self._width), np.float32)
        padded[:, first : first + rows.shape[1]] = rows
        return padded

    def _unread(self, end: int, most: int) -> tuple[list[int], Floats]:
        """Positions of the first `most` tokens that can be read now, and the model's rows of the tokens before them.

        None if the rows that wait do not go up to `end`.
        """
        known = self._places[-1] if self._places else 0
        places: list[int] = []
        parts: list[Floats] = []
        for first, rows in self._waiting:
            start, stop = max(first + 1, known + 1), min(first + len(rows), end)
            if start <= stop:
                parts.append(rows[start - 1 - first : stop - first][: max(0, most - len(places))])
                places += range(start, stop + 1)
        return (places[:most], np.concatenate(parts)) if places and places[-1] == end else ([], self._next)

    def _keep(self, n_tokens: int) -> None:
        """Keep the first `n_tokens` of what was read."""
        del self._places[n_tokens:], self._tokens[n_tokens:]

    def _forget(self, position: int, place: int | None = None) -> None:
        """Forget rows from a position on, and what was read there, or from another place on."""
        del self._text[position:]
        self._keep(bisect_left(self._places, position if place is None else place))
        left = ((first, rows[: max(0, position - first)]) for first, rows in self._waiting)
        self._waiting = deque((first, rows) for first, rows in left if len(rows))

    def _drop_read(self, place: int) -> None:
        """Drop rows that were read, except the one that the token at `place`, the last one read, came with."""
        while self._waiting[0][0] + len(self._waiting[0][1]) < place:
            self._waiting.popleft()
        first, rows = self._waiting[0]
        if first < place - 1:
            self._waiting[0] = place - 1, rows[place - 1 - first :]
