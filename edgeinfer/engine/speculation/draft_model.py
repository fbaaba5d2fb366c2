"""Running a draft model: which tokens it thinks come next, and for how many of them it is worth asking.

In: a second model on the same device, the tokens so far. Out: a chain of its choices with their highest logits, filled
into the drafter's tables. How far to go on is decided token by token: by how often its tokens were right, what each
costs, and what the other drafters offer without it. Source of the rule: as `loops.growth`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.pool import Pool
from edgeinfer.engine.speculation.acceptance import AcceptanceEstimator
from edgeinfer.engine.speculation.costs import Costs
from edgeinfer.engine.speculation.drafters.draft_model import Chain
from edgeinfer.engine.speculation.priming import PACK
from edgeinfer.engine.speculation.records import BEST, FIRST_BUCKET, GAP_EDGES, GAPS, MOST_CHAINED, TOKEN_BITS
from edgeinfer.errors import ContextOverflow, DeviceFailed, DoesNotFit
from edgeinfer.graph.step import Batch, Floats, Int32s
from edgeinfer.jit.library import KernelLibrary

Failure: TypeAlias = DeviceFailed | MemoryError
FIRST_CHANCE, FIRST_WEIGHT = 0.6, 4.0
"""Of a draft model's likeliest token to be right, and how many sightings that counts as."""
FEW = 4
"""Tokens of a pass that takes about as long as one of a single token."""
UNASKED = 128
"""Passes without the draft model after which it is asked for a token: what is known of it grows old."""
RECENT = 1 / 16
"""Of a new time in the moving average."""


class DraftModel:
    """The model, for all sessions. Close it."""

    def __init__(self, executor: SequenceEvaluator, fingerprint: str, n_vocab: int, close: Callable[[], None]) -> None:
        """`n_vocab`: tokens that both models know. `close` is called at the end."""
        self.fingerprint = fingerprint
        self._pool = Pool(executor)
        self._n_vocab = n_vocab
        self._close = close
        self._failures: list[Failure] = []
        self._told = False

    def session(self, library: KernelLibrary) -> Follower:
        """The model's view of one more session; `library` has the loops."""
        return Follower(self._pool.open(), Highest(library, self._n_vocab), self._failures)

    def take_notices(self) -> tuple[str, ...]:
        """What has happened since this was last asked: a failure is reported once."""
        if self._told or not self._failures:
            return ()
        self._told = True
        why = str(self._failures[0]) or "it ran out of memory"
        return (f"the draft model failed and drafts no more ({why}); answers go on without it",)

    def close(self) -> None:
        """Give back memory; may be called twice."""
        self._pool.close()
        self._close()


class Highest:
    """The highest of one row of logits, as `loops.best` packs them: int32[BEST]."""

    def __init__(self, library: KernelLibrary, n_vocab: int) -> None:
        self._library = library  # owns the code
        self._pack: Callable[..., int] = library.function(PACK)
        self._n_vocab = n_vocab

    def __call__(self, logits: Floats, peaks: Floats | None) -> Int32s:
        out = np.zeros(BEST, np.int32)
        where = 0 if peaks is None else peaks.ctypes.data
        self._pack(logits.ctypes.data, 0, where, 0, 1, self._n_vocab, out.ctypes.data)
        return out


class Follower:
    """The draft model's cached tokens of one session: those of the text, and of what it thought would follow."""

    def __init__(self, cached: CachedSequence, highest: Highest, failures: list[Failure]) -> None:
        """`failures` of the model, for all sessions: after one it says nothing more."""
        self._cached = cached
        self._failures = failures
        self._highest = highest
        self.n_run = 0
        """Tokens of the last pass."""

    def read(self, history: Sequence[int]) -> Int32s | None:
        """The highest logits after a text, int32[BEST]; None where it does not fit, or is not read yet.

        Reads a part of a long text that it has not seen at each call, so that an answer never waits for more.
        """
        cached = self._cached
        if self._failures or len(history) >= cached.n_context:
            return None
        position = cached.keep_prefix(history)
        part = history[position : position + cached.max_tokens]
        is_last = position + len(part) == len(history)
        row = self._run(cached.chain(part, wants_logits=is_last))
        return row if is_last else None

    def go_on(self, token: int) -> Int32s | None:
        """The highest logits after one more token; None where it does not fit."""
        if self._failures or self._cached.is_full:
            return None
        return self._run(self._cached.chain((token,), wants_logits=True))

    def close(self) -> None:
        """Give back the memory."""
        self._cached.close()

    def _run(self, batch: Batch) -> Int32s | None:
        """Evaluate and keep a chain; the highest logits of its last token on request."""
        cached, self.n_run = self._cached, len(batch.tokens)
        with cached.lock:
            try:
                logits = cached.evaluate(batch)
            except (DoesNotFit, ContextOverflow):
                cached.forget()
                return None
            except (DeviceFailed, MemoryError) as reason:
                self._failures.append(reason)
                with suppress(DeviceFailed, MemoryError):
                    cached.forget()
                return None
            row = self._highest(logits, cached.peaks) if len(logits) else None
            cached.commit(batch, np.arange(len(batch.tokens), dtype=np.int32))
        return row


@dataclass(slots=True)
class Offer:
    """What a tree without the draft model's tokens gives: expected tokens, at which cost; and what passes cost.

    `most`: tokens that the draft model may add. `is_fixed`: as many as may be.
    """

    expected: float
    cost: float
    costs: Costs
    most: int
    is_fixed: bool

    def rate(self, expected: float, n_asked: int, token_s: float) -> float:
        """Expected tokens per cost after asking for so many, each of which takes `token_s`."""
        asked = n_asked * token_s / self.costs.unit_s if self.costs.unit_s else 0.0
        return expected / (float(self.costs.curve[n_asked + 1]) + asked)


class DraftModelPolicy:
    """When to ask a draft model, and for how much, in one session."""

    def __init__(self, follower: Follower, chain: Chain, first_bucket: int) -> None:
        """`first_bucket`: where the buckets of its draft source begin in the counts."""
        self._follower = follower
        self._chain = chain
        self._rank_0 = slice(first_bucket + FIRST_BUCKET, first_bucket + FIRST_BUCKET + GAPS)
        self._token_s = 0.0
        self._n_unasked = UNASKED
        self.seconds = 0.0
        """Spent on the pass at hand."""

    def begin(self) -> None:
        """Before each pass: nothing has been asked."""
        self._chain.clear()
        self.seconds = 0.0

    def ask(self, history: Sequence[int], acceptance: AcceptanceEstimator, offer: Offer) -> bool:
        """Let the model draft if that should pay; whether there is something new."""
        usual, by_gap = self._acceptance(acceptance)
        is_due = self._n_unasked >= UNASKED
        most = min(offer.most, MOST_CHAINED)
        if most < 1:
            return False
        if not (offer.is_fixed or is_due) and not self._pays(offer, usual, most):
            self._n_unasked += 1
            return False
        started = time.perf_counter()
        self._n_unasked = 0
        row, reach, expected = self._follower.read(history), 1.0, 1.0
        while row is not None:
            asked_s = time.perf_counter() - started - self.seconds
            self.seconds += asked_s
            if self._follower.n_run <= FEW:
                self._token_s += (asked_s - self._token_s) * (RECENT if self._token_s else 1.0)
            gap = int(row[0]) >> TOKEN_BITS
            token = self._chain.add(row)
            reach *= by_gap[_gap_class(gap)]
            expected += reach
            n_rows = self._chain.n_rows
            if n_rows >= most or not (offer.is_fixed or self._pays_more(offer, usual, reach, expected, n_rows)):
                break
            row = self._follower.go_on(token)
        self.seconds = time.perf_counter() - started
        return self._chain.n_rows > 0

    def close(self) -> None:
        """The session is over."""
        self._follower.close()

    def _acceptance(self, acceptance: AcceptanceEstimator) -> tuple[float, list[float]]:
        """That the model's likeliest token is right: of all, and by how far it was ahead of the second."""
        counts = acceptance.counts[self._rank_0]
        seen, accepted = counts["seen"].astype(float), counts["accepted"].astype(float)
        usual = (accepted.sum() + FIRST_WEIGHT * FIRST_CHANCE) / (seen.sum() + FIRST_WEIGHT)
        by_gap = (accepted + FIRST_WEIGHT * usual) / (seen + FIRST_WEIGHT)
        return float(usual), by_gap.tolist()

    def _pays(self, offer: Offer, chance: float, most: int) -> bool:
        """Whether some number of tokens, each as likely as usual, would be better than doing without."""
        reach, expected, best = 1.0, 1.0, 0.0
        for count in range(1, most + 1):
            reach *= chance
            expected += reach
            best = max(best, offer.rate(expected, count, self._token_s))
        return best > offer.expected / offer.cost

    def _pays_more(self, offer: Offer, chance: float, reach: float, expected: float, count: int) -> bool:
        """Whether one more token, as likely as usual, would be better than to check those there are."""
        now = offer.rate(expected, count, self._token_s)
        return offer.rate(expected + reach * chance, count + 1, self._token_s) > now


def _gap_class(gap: int) -> int:
    """As `loops.best.standing` tells gaps apart."""
    return sum(gap >= edge for edge in GAP_EDGES)
