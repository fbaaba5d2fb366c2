"""A trained head that attends to its model's own keys and values: Gemma 4's assistants, as a draft model.

In: the model's hidden row of the last cached token of each text. Out: chains that continue the texts. The head stores
nothing: it evaluates one token of a text at a time, always at the position of the last cached token, first with the
model's row and then with its own. So nothing needs to be undone when the model chooses otherwise. Call with the lock of
the model's sequences held, as whoever drafts for a pass does. Source of the computation: `models.gemma4_assistant`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeinfer.engine.requests.drafting import CachedText
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.speculation.draft_followers import TextPart
from edgeinfer.graph.step import Batch, Floats, Int32s


class AssistantFollower:
    """The model's last row of one session's text, and the head's own."""

    def __init__(self) -> None:
        self._text: CachedText | None = None
        """The text in the model's cache; None if nothing is known of it."""
        self._n_known = 0
        """How many of its tokens had been evaluated when"""
        self._given: Floats = np.zeros((0, 0), np.float32)
        """the model's row of the last of them was taken."""
        self._next: Floats = np.zeros((0, 0), np.float32)
        """The head's own row of the last token that it read."""

    @property
    def row_reader(self) -> AssistantFollower:
        """What is given the model's rows."""
        return self

    def begin(self, text: Sequence[int]) -> None:
        """Start a text to continue: the model reads at least its last token again, and says so."""
        self._text = None

    def reach(self, text: CachedText | None, most: int) -> int:
        """As many as asked for, whatever the text."""
        return most

    def note(self, first: int, tokens: Sequence[int], rows: Floats, text: CachedText | None = None) -> None:
        """Take the model's rows of tokens that continue the text from position `first` on."""
        if len(tokens):
            self._text, self._n_known, self._given = text, first + len(tokens), rows[-1:].copy()

    @property
    def members(self) -> tuple[CachedSequence, ...]:
        """None: the sequences are the model's."""
        return ()

    def keep(self, batch: Batch, path: Int32s) -> None:
        """Do nothing, as nothing is stored."""

    def finish(self) -> None:
        """Do nothing, as nothing is stored."""

    def leave_out(self) -> None:
        """Forget the text, which takes no memory."""
        self._text = None

    def close(self) -> None:
        """Do nothing, as nothing is held."""

    def keep_row(self, row: Floats) -> None:
        """Take the head's own row of the last token."""
        self._next = row.copy()

    def unread(self, history: Sequence[int], most: int, ahead: Sequence[int]) -> TextPart | None:
        """The last token of a text; None unless the model has cached exactly those before it."""
        if most < 1 or self._text is None or not len(history) - 1 == self._n_known == self._text.n_cached:
            return None
        return self._part(self._text, history[-1], self._given)

    def after(self, token: int, most: int, ahead: Sequence[int]) -> TextPart | None:
        """One more token, which the model has not evaluated."""
        return None if most < 1 or self._text is None else self._part(self._text, token, self._next)

    def _part(self, text: CachedText, token: int, row: Floats) -> TextPart:
        """One token after the cached ones, with a row; what may be ahead is not evaluated, as its rows are unknown."""
        nothing: Int32s = np.full(1, -1, np.int32)
        places = np.full(1, text.sequence, np.int32), np.full(1, text.n_cached - 1, np.int32)
        return TextPart(Batch(np.array([token], np.int32), *places, nothing, nothing + 1, hidden=row))
