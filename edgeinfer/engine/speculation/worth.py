"""Whether drafts pay at present: seconds a token with them and without, in passes of one text alone.

In: the passes of a text: how many tokens each gave, how long it took with everything around it, and whether it had a
draft. Out: whether the next pass should do without. Estimates of a draft's gain leave out what drafting itself costs
between passes, which small models feel; here both are timed. A pass that was interrupted counts as a slow one.
"""

from __future__ import annotations

import statistics
from collections import deque

FIRST_JUDGED, MOST_JUDGED = 16, 128
"""Passes with drafts before they are judged: at first, and after they have paid several times."""
SAMPLE = 2
"""Passes without drafts to compare with."""
PLAIN_KEPT = 9
"""Latest passes without drafts whose median counts."""
FIRST_REST, MOST_REST = 24, 192
"""Passes without drafts after they did not pay: the first time, and after that happened several times in a row."""
MOST_SLOW = 3.0
"""A pass with a draft counts as no more than this many times one without."""


class Worth:
    """Judges the drafts of one text after another."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new text, in which other drafts may pay."""
        self._plain: deque[float] = deque(maxlen=PLAIN_KEPT)
        self._drafted: list[tuple[int, float]] = []
        self._n_plain, self._n_judged, self._n_rest = 0, FIRST_JUDGED, FIRST_REST

    @property
    def rests(self) -> bool:
        """Whether the next pass should have no draft."""
        return self._n_plain > 0

    def note(self, n_tokens: int, seconds: float, *, drafted: bool) -> None:
        """Note a pass that gave `n_tokens` tokens. `drafted`: there was a draft, of whatever size."""
        if drafted:
            self._drafted.append((n_tokens, seconds))
            if len(self._drafted) >= self._n_judged and not self._n_plain:
                self._n_plain = SAMPLE
            return
        self._plain.append(seconds)
        self._n_plain = max(0, self._n_plain - 1)
        if not self._n_plain and len(self._drafted) >= self._n_judged:
            self._judge()

    def _judge(self) -> None:
        """Rest if the passes with drafts gave fewer tokens a second."""
        plain_s = statistics.median(self._plain)
        spent_s = sum(min(seconds, MOST_SLOW * plain_s) for _, seconds in self._drafted)
        pays = sum(n_tokens for n_tokens, _ in self._drafted) * plain_s > spent_s
        self._drafted.clear()
        if pays:
            self._n_judged, self._n_rest = min(2 * self._n_judged, MOST_JUDGED), FIRST_REST
        else:
            self._n_plain, self._n_judged, self._n_rest = self._n_rest, FIRST_JUDGED, min(2 * self._n_rest, MOST_REST)
