"""Whether drafts pay at present: seconds a token with them and without, by the clock.

In: passes of one text alone, or of several texts: how many tokens each gave, how long it took with everything around
it, and whether it had drafts. Out: whether the next pass should do without. Estimates of a draft's gain leave out what
drafting itself costs between passes, which small models feel; here both are timed. A pass that was interrupted counts
as a slow one.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass

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
    """Judges the drafts of one text after another, or of the texts that share passes."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new text, in which other drafts may pay."""
        self._plain: deque[float] = deque(maxlen=PLAIN_KEPT)
        self._drafted: list[tuple[float, float]] = []
        self._n_plain, self._n_judged, self._n_rest = 0, FIRST_JUDGED, FIRST_REST

    @property
    def rests(self) -> bool:
        """Whether the next pass should have no draft."""
        return self._n_plain > 0

    def note(self, n_tokens: float, seconds: float, *, drafted: bool) -> None:
        """Note a pass that gave each text `n_tokens` tokens on average. `drafted`: drafts of any size were allowed."""
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


@dataclass(slots=True)
class _SharedPass:
    """A pass: its texts, whether they may have drafts, when drafting began, and what it gave."""

    n_texts: int
    drafted: bool
    began_s: float
    ended_s: float = 0.0
    n_learnt: int = 0
    n_tokens: int = 0
    is_whole: bool = False


class SharedWorth:
    """Judges the drafts of passes that several texts share, by the number of texts.

    A pass ends when all its texts have learned from it.
    """

    def __init__(self) -> None:
        self._by_texts: dict[int, Worth] = {}
        self._pass: _SharedPass | None = None

    def begin(self, n_texts: int, *, judged: bool) -> bool:
        """A pass begins; returns whether its texts should have no drafts. `judged`: it contains nothing else."""
        self._settle()
        rests = self._by_texts.setdefault(n_texts, Worth()).rests
        self._pass = _SharedPass(n_texts, not rests, time.perf_counter()) if judged else None
        return rests

    def ran(self) -> None:
        """The pass took place, with all its texts and without others."""
        if self._pass is not None:
            self._pass.is_whole = True

    def learnt(self, n_tokens: int) -> None:
        """A text has taken what the pass gave it."""
        if self._pass is not None:
            self._pass.n_learnt, self._pass.n_tokens = self._pass.n_learnt + 1, self._pass.n_tokens + n_tokens
            self._pass.ended_s = time.perf_counter()

    def _settle(self) -> None:
        """Note the pass that is over."""
        over, self._pass = self._pass, None
        if over is not None and over.is_whole and over.n_learnt == over.n_texts:
            mean, seconds = over.n_tokens / over.n_texts, over.ended_s - over.began_s
            self._by_texts[over.n_texts].note(mean, seconds, drafted=over.drafted)
