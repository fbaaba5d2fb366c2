"""The sequences that share one executor: its lock, and the memory that those which rest give up to others.

In: sequences, batches. Out: logits. One evaluation at a time; where memory runs short, sequences that rest lose theirs,
the one used longest ago first, and read their text again when they go on. Knows no text.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.engine.run.fair_lock import FairLock
from edgeinfer.errors import DoesNotFit, EngineClosed, UnsupportedModel
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.offload.weights import WeightReads


class Pool:
    """The sequences that share one executor."""

    def __init__(self, executor: SequenceEvaluator, *, writes: bool = True) -> None:
        """`writes`: whether texts can be continued; else they are only read, for embeddings."""
        self.executor, self._writes = executor, writes
        has = executor.capabilities
        self._interruptible, self._eventful, self._overlapping = has.interruptible, has.eventful, has.overlapping
        self.lock = FairLock()
        self._members: list[CachedSequence] = []
        self._closed = False
        self._rests_since = time.monotonic()

    def open(self, n_tokens: int | None = None) -> CachedSequence:
        """A new empty sequence that may grow to so many tokens (None: the context). Raises EngineClosed when closed."""
        member = self.reserve(n_tokens)
        with self.lock:
            self.check_open()
            member.settle()
        return member

    def reserve(self, n_tokens: int | None = None) -> CachedSequence:
        """As `open`, but the executor hears of it only when it is used first: this waits for nobody."""
        return CachedSequence(self, n_tokens)

    def create(self, member: CachedSequence, n_tokens: int | None) -> int:
        """Count an empty sequence in, as the one used last; its number."""
        overlapping = self._overlapping
        sequence = self.executor.create() if overlapping is None else overlapping.create(n_tokens)
        self._members.append(member)
        return sequence

    def branch(self, member: CachedSequence, donor: int) -> int:
        """Count a sequence in that begins as another one; its number."""
        sequence = self.executor.branch(donor)
        self._members.append(member)
        return sequence

    def leave(self, member: CachedSequence, sequence: int) -> None:
        """Count a sequence out and give back its memory."""
        if not self._closed:
            self._members.remove(member)
            self.executor.free(sequence)

    def replace(self, member: CachedSequence, successor: CachedSequence) -> None:
        """A sequence goes on as another one, the one used last."""
        self._members.remove(member)
        self._members.append(successor)

    @property
    def members(self) -> tuple[CachedSequence, ...]:
        """All sequences, the one used longest ago first."""
        return tuple(self._members)

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
    def reading(self) -> WeightReads:
        """What the executor has read of weights so far."""
        return self.executor.reading

    def take_notices(self) -> tuple[str, ...]:
        """What has happened to the executor since this was last asked."""
        return () if self._eventful is None else self._eventful.take_notices()

    @property
    def idle_s(self) -> float:
        """Seconds since a request was running."""
        if any(member.runs for member in tuple(self._members)):
            return 0.0
        return time.monotonic() - self._rests_since

    def note_rest(self) -> None:
        """An answer is over: passes that are nobody's must not be broken off by its flag."""
        if self._interruptible is not None and not self._closed:
            self._interruptible.heed(None)
        self._rests_since = time.monotonic()

    def check_writes(self) -> None:
        """Raises UnsupportedModel for a model that continues no texts."""
        if not self._writes:
            raise UnsupportedModel("this model reads whole texts for embeddings and writes none: use embed, or serve")

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
            self._rests_since = time.monotonic()  # what idle time is used for ends
            self._members.clear()
            self.executor.close()
