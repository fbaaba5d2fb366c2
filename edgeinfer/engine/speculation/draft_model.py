"""Running a draft model: which tokens it predicts, and for how many of them it is worth running.

In: a second model on the same device, the tokens so far. Out: a chain of its choices with their highest logits, written
to the drafter's tables. How far to go is decided token by token, from how often its tokens were right, what each costs,
and what the other drafters offer without it. Source of the rule: as `loops.growth`.
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
"""Assumed probability that a draft model's likeliest token is right, and how many sightings that counts as."""
FEW = 4
"""A pass of up to this many tokens takes about as long as one of a single token."""
UNASKED = 128
"""Passes without the draft model after which it runs for one token, so that what is known of it stays current."""
RECENT = 1 / 16
"""Weight of a new time in the moving average."""


class DraftModel:
    """The draft model, for all sessions. Close it."""

    def __init__(self, executor: SequenceEvaluator, fingerprint: str, n_vocab: int, close: Callable[[], None]) -> None:
        """`n_vocab`: tokens that both models have. `close` is called at the end."""
        self.fingerprint = fingerprint
        self._pool = Pool(executor)
        self._n_vocab = n_vocab
        self._close = close
        self._failures: list[Failure] = []
        self._told = False

    def session(self, library: KernelLibrary) -> Follower:
        """The draft model's state for one more session; `library` has the loops."""
        return Follower(self._pool.open(), Highest(library, self._n_vocab), self._failures)

    def take_notices(self) -> tuple[str, ...]:
        """Notices since the last call; a failure is reported once."""
        if self._told or not self._failures:
            return ()
        self._told = True
        why = str(self._failures[0]) or "it ran out of memory"
        return (f"the draft model failed and drafts no more ({why}); answers go on without it",)

    def close(self) -> None:
        """Free the memory; may be called twice."""
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
    """The draft model's cached tokens for one session: those of the text, and those it predicted."""

    def __init__(self, cached: CachedSequence, highest: Highest, failures: list[Failure]) -> None:
        """`failures`: the draft model's failures in all sessions; after one it is not run again."""
        self._cached = cached
        self._failures = failures
        self._highest = highest
        self.n_run = 0
        """Number of tokens of the last pass."""

    def read(self, history: Sequence[int]) -> Int32s | None:
        """The highest logits after a text, int32[BEST]; None if it does not fit, or has not been read completely yet.

        Each call reads at most one part of an unread text, so an answer never waits for more than that.
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
        """The highest logits after one more token; None if it does not fit."""
        if self._failures or self._cached.is_full:
            return None
        return self._run(self._cached.chain((token,), wants_logits=True))

    def close(self) -> None:
        """Free the memory."""
        self._cached.close()

    def _run(self, batch: Batch) -> Int32s | None:
        """Evaluate and commit a chain. Returns the highest logits of its last token, if the batch asks for logits."""
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
    """What a tree without the draft model's tokens gives: expected tokens and their cost; and the costs of passes.

    `most`: tokens that the draft model may add. `is_fixed`: add as many as allowed.
    """

    expected: float
    cost: float
    costs: Costs
    most: int
    is_fixed: bool

    def rate(self, expected: float, n_asked: int, token_s: float) -> float:
        """Expected tokens per cost after `n_asked` draft tokens, each of which takes `token_s` seconds."""
        asked = n_asked * token_s / self.costs.unit_s if self.costs.unit_s else 0.0
        return expected / (float(self.costs.curve[n_asked + 1]) + asked)


class DraftModelPolicy:
    """When to run a draft model, and for how many tokens, in one session."""

    def __init__(self, follower: Follower, chain: Chain, first_bucket: int) -> None:
        """`first_bucket`: index of the first bucket of its draft source in the counts."""
        self._follower = follower
        self._chain = chain
        self._rank_0 = slice(first_bucket + FIRST_BUCKET, first_bucket + FIRST_BUCKET + GAPS)
        self._token_s = 0.0
        self._n_unasked = UNASKED
        self.seconds = 0.0
        """Seconds spent for the current pass."""

    def begin(self) -> None:
        """Called before each pass: nothing has been drafted."""
        self._chain.clear()
        self.seconds = 0.0

    def ask(self, history: Sequence[int], acceptance: AcceptanceEstimator, offer: Offer) -> bool:
        """Run the draft model if that should pay. Returns whether it drafted anything."""
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
        """Called when the session is over."""
        self._follower.close()

    def _acceptance(self, acceptance: AcceptanceEstimator) -> tuple[float, list[float]]:
        """Probability that the draft model's likeliest token is right: overall, and by its lead over the second."""
        counts = acceptance.counts[self._rank_0]
        seen, accepted = counts["seen"].astype(float), counts["accepted"].astype(float)
        usual = (accepted.sum() + FIRST_WEIGHT * FIRST_CHANCE) / (seen.sum() + FIRST_WEIGHT)
        by_gap = (accepted + FIRST_WEIGHT * usual) / (seen + FIRST_WEIGHT)
        return float(usual), by_gap.tolist()

    def _pays(self, offer: Offer, chance: float, most: int) -> bool:
        """Whether some number of draft tokens, at the usual acceptance, would be better than none."""
        reach, expected, best = 1.0, 1.0, 0.0
        for count in range(1, most + 1):
            reach *= chance
            expected += reach
            best = max(best, offer.rate(expected, count, self._token_s))
        return best > offer.expected / offer.cost

    def _pays_more(self, offer: Offer, chance: float, reach: float, expected: float, count: int) -> bool:
        """Whether one more draft token, at the usual acceptance, would be better than verifying those there are."""
        now = offer.rate(expected, count, self._token_s)
        return offer.rate(expected + reach * chance, count + 1, self._token_s) > now


def _gap_class(gap: int) -> int:
    """The class of a gap, as in `loops.best.standing`."""
    return sum(gap >= edge for edge in GAP_EDGES)
