"""One sequence's cached tokens: what the KV memory holds of it, and running batches that continue it.

In: prompts and batches. Out: how much of a prompt is cached already, logits, and a sequence that grows by what is
committed. Belongs to one session; several of them share a `Pool`, whose lock allows one evaluation at a time and
which takes the memory of sequences that rest when it runs short: they read their prompt again when they go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np

from edgeinfer.backends.base import Batch, Floats, Int32s
from edgeinfer.backends.stopping import StopFlag
from edgeinfer.backends.stored import Reading
from edgeinfer.engine.evaluators import FromDisk, Interruptible, Overlapping, SequenceEvaluator, Telling
from edgeinfer.engine.kvcache import pages_for
from edgeinfer.engine.regime import Regime
from edgeinfer.engine.speculation.tree import Draft
from edgeinfer.errors import ContextOverflow, DoesNotFit, EngineClosed


class Pool:
    """The sequences that share one executor."""

    def __init__(self, executor: SequenceEvaluator) -> None:
        self.executor = executor
        self._interruptible = executor if isinstance(executor, Interruptible) else None
        self._telling = executor if isinstance(executor, Telling) else None
        self.lock = threading.RLock()
        self._members: list[CachedSequence] = []
        self._closed = False
        self._rests_since = time.monotonic()

    def open(self, n_tokens: int | None = None) -> CachedSequence:
        """A new empty sequence that may grow to so many tokens (None: the context). Raises EngineClosed when closed."""
        with self.lock:
            self.check_open()
            executor = self.executor
            sequence = executor.create(n_tokens) if isinstance(executor, Overlapping) else executor.create()
            return self.join(CachedSequence(self, sequence, []))

    def join(self, member: CachedSequence) -> CachedSequence:
        """Count a sequence in, as the one used last."""
        self._members.append(member)
        return member

    def leave(self, member: CachedSequence) -> None:
        """Count a sequence out and give back its memory."""
        if not self._closed:
            self._members.remove(member)
            self.executor.free(member.sequence)

    def evaluate(self, member: CachedSequence, batch: Batch) -> Floats:
        """Evaluate a batch; where memory is short, resting sequences lose theirs, the one used longest ago first."""
        self._members.remove(member)
        self._members.append(member)
        if self._interruptible is not None:
            self._interruptible.heed(member.stopped)
        while True:
            try:
                return self.executor.evaluate(batch)
            except DoesNotFit:
                if not self.make_room((member,)):
                    raise

    def make_room(self, kept: Collection[CachedSequence]) -> bool:
        """Take the memory of a sequence that rests and is none of these; whether there was one."""
        resting = next((other for other in self._members if other.rests and other not in kept), None)
        if resting is not None:
            resting.forget()
        return resting is not None

    @property
    def reading(self) -> Reading:
        """What the executor has read of weights so far."""
        return self.executor.reading if isinstance(self.executor, FromDisk) else Reading()

    def take_notices(self) -> tuple[str, ...]:
        """What has happened to the executor since this was last asked."""
        return () if self._telling is None else self._telling.take_notices()

    @property
    def idle_s(self) -> float:
        """Seconds since an answer was in the making."""
        if any(member.runs for member in tuple(self._members)):
            return 0.0
        return time.monotonic() - self._rests_since

    def note_rest(self) -> None:
        """An answer is over: passes that are nobody's must not be broken off by its flag."""
        if self._interruptible is not None and not self._closed:
            self._interruptible.heed(None)
        self._rests_since = time.monotonic()

    def check_open(self) -> None:
        """Raises EngineClosed after `close`."""
        if self._closed:
            raise EngineClosed("the model is closed; load it again")

    def stop(self) -> None:
        """End every running generation within a step."""
        for member in tuple(self._members):
            member.stop()

    def close(self) -> None:
        """Stop what runs, wait for its step to end, and give back the memory."""
        self.stop()
        with self.lock:
            self._closed = True
            self._members.clear()
            self.executor.close()


class CachedSequence:
    """Tokens of one sequence and the KV memory behind them. At most one generation continues it at a time."""

    def __init__(self, pool: Pool, sequence: int, tokens: list[int]) -> None:
        self._pool = pool
        self.sequence = sequence
        self._tokens = tokens
        self._stop_current: Callable[[], None] | None = None
        self.stopped: StopFlag | None = None
        """Of the generation that runs."""
        self._closed = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """The cached tokens."""
        return tuple(self._tokens)

    @property
    def n_cached(self) -> int:
        """How many tokens are cached."""
        return len(self._tokens)

    @property
    def runs(self) -> bool:
        """Whether an answer is in the making."""
        return self._stop_current is not None

    @property
    def rests(self) -> bool:
        """Whether it holds memory that no running generation needs."""
        return self._stop_current is None and bool(self._tokens)

    @property
    def n_context(self) -> int:
        return self._pool.executor.limits.n_context

    @property
    def max_tokens(self) -> int:
        """Most tokens of one batch."""
        return self._pool.executor.limits.max_tokens

    @property
    def is_full(self) -> bool:
        """Whether no further token can be evaluated."""
        return len(self._tokens) >= self.n_context

    def begin(self, stop: Callable[[], None], stopped: StopFlag) -> None:
        """A generation starts, ended by `stop`, which sets `stopped`; one that still runs evaluates nothing more."""
        with self._pool.lock:
            self.check_open()
            self.stop()
            self._stop_current, self.stopped = stop, stopped

    def end(self, stop: Callable[[], None]) -> None:
        """The generation that `stop` would end is over."""
        with self._pool.lock:
            if self._stop_current == stop:
                self._stop_current = self.stopped = None
                self._pool.note_rest()

    def stop(self) -> None:
        """End the running generation within a step; from any thread."""
        current = self._stop_current
        if current is not None:
            current()

    def keep_prefix(self, prompt: Sequence[int]) -> int:
        """Keep what is cached of a prompt, but never its last token, and forget the rest; how many tokens are kept."""
        with self._pool.lock:
            self.check_open()
            longest = min(len(self._tokens), len(prompt) - 1)
            if self._tokens[:longest] == list(prompt[:longest]):
                n_same = longest
            else:
                n_same = next(n for n in range(longest) if self._tokens[n] != prompt[n])
            self._truncate(n_same)
            return n_same

    def chain(self, tokens: Sequence[int], *, wants_logits: bool) -> Batch:
        """The batch of tokens that follow one another, with the logits of the last one or none."""
        n_tokens, n_cached = len(tokens), len(self._tokens)
        return Batch(
            tokens=np.array(tokens, np.int32),
            sequences=np.full(n_tokens, self.sequence, np.int32),
            positions=np.arange(n_cached, n_cached + n_tokens, dtype=np.int32),
            parents=np.arange(-1, n_tokens - 1, dtype=np.int32),
            outputs=np.array([n_tokens - 1] if wants_logits else [], np.int32),
        )

    def tree(self, draft: Draft) -> Batch:
        """The batch of a draft, whose root follows what is cached, with the logits of all its tokens."""
        n_tokens = len(draft.tokens)
        if n_tokens == 1:
            return self.chain(draft.tokens.tolist(), wants_logits=True)
        return Batch(
            tokens=draft.tokens,
            sequences=np.full(n_tokens, self.sequence, np.int32),
            positions=len(self._tokens) + draft.depths,
            parents=draft.parents,
            outputs=np.arange(n_tokens, dtype=np.int32),
        )

    @property
    def most_drafted(self) -> tuple[int, int]:
        """Most tokens of a draft, its root included, and the most that may follow one another after the root.

        Nothing is drafted where that could take the memory of other sequences, and no more than the regime allows.
        """
        executor = self._pool.executor
        most = min(executor.limits.max_tokens, executor.limits.max_outputs, self.regime.policy.most_drafted)
        if executor.n_free_pages < 1 + 2 * pages_for(most):  # its own page, more of the context, siblings
            return 1, 0
        return most, max(0, self.n_context - len(self._tokens) - 1)

    @property
    def regime(self) -> Regime:
        """What may be used of the machine."""
        return self._pool.executor.regime

    @property
    def lock(self) -> threading.RLock:
        """Hold it from `evaluate` until its logits are used and `commit` is done."""
        return self._pool.lock

    @property
    def reading(self) -> Reading:
        """What was read of weights so far, for all sequences."""
        return self._pool.reading

    def take_notices(self) -> tuple[str, ...]:
        """What has happened to the executor since this was last asked."""
        return self._pool.take_notices()

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of a batch: float32[O, V], valid while the lock is held. Raises Interrupted for a stop within it."""
        self.check_open()
        return self._pool.evaluate(self, batch)

    @property
    def peaks(self) -> Floats | None:
        """`Executor.peaks` of these logits, valid as long."""
        return self._pool.executor.peaks

    def commit(self, batch: Batch, path: Int32s) -> None:
        """Keep these tokens of the batch just evaluated; under the same lock."""
        self._pool.executor.commit(self.sequence, path)
        tokens = batch.tokens.tolist()
        self._tokens.extend([tokens[node] for node in path.tolist()])

    def branch(self) -> CachedSequence:
        """Another sequence with the same cached tokens, sharing their memory."""
        with self._pool.lock:
            self.check_open()
            twin = CachedSequence(self._pool, self._pool.executor.branch(self.sequence), list(self._tokens))
            return self._pool.join(twin)

    def save(self) -> tuple[tuple[int, ...], bytes]:
        """The cached tokens and the executor's state for them."""
        with self._pool.lock:
            self.check_open()
            return self.tokens, self._pool.executor.save(self.sequence)

    def restore(self, tokens: Sequence[int], state: bytes) -> None:
        """Replace what is cached by a saved state. Raises as `Executor.restore`."""
        with self._pool.lock:
            self.check_open()
            self.stop()
            try:
                self._pool.executor.restore(self.sequence, state)
                self._tokens = list(tokens)
            except (DoesNotFit, ContextOverflow):
                self._tokens = []
                raise

    def forget(self) -> None:
        """Give back the memory; the next prompt is read from its start."""
        self._truncate(0)

    def close(self) -> None:
        """Stop what runs and give back the memory; may be called twice."""
        with self._pool.lock:
            if not self._closed:
                self.stop()
                self._closed = True
                self._pool.leave(self)

    def _truncate(self, n_tokens: int) -> None:
        self._pool.executor.truncate(self.sequence, n_tokens)
        del self._tokens[n_tokens:]

    def check_open(self) -> None:
        """Raises EngineClosed after `close`, its own or the model's."""
        self._pool.check_open()
        if self._closed:
            raise EngineClosed("the session is closed; open another one on the model")
