"""The sequences that share one executor: its lock, and which idle sequences lose their memory to others.

In: sequences, batches. Out: logits. One evaluation at a time. When memory runs short, idle sequences lose theirs, least
recently used first, and read their text again when they continue. Knows no text.
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
        """`writes`: whether the model can continue texts; if not, it only reads them, for embeddings."""
        self.executor, self._writes = executor, writes
        has = executor.capabilities
        self._interruptible, self._eventful, self._overlapping = has.interruptible, has.eventful, has.overlapping
        self.lock = FairLock()
        self._members: list[CachedSequence] = []
        self._closed = False
        self._rests_since = time.monotonic()

    def open(self, n_tokens: int | None = None) -> CachedSequence:
        """A new empty sequence that may grow to this many tokens (None: the context). Raises EngineClosed."""
        member = self.reserve(n_tokens)
        with self.lock:
            self.check_open()
            member.settle()
        return member

    def reserve(self, n_tokens: int | None = None) -> CachedSequence:
        """As `open`, but creates the sequence in the executor on first use, so that this never waits."""
        return CachedSequence(self, n_tokens)

    def create(self, member: CachedSequence, n_tokens: int | None) -> int:
        """Add an empty sequence as the most recently used one; returns its number."""
        overlapping = self._overlapping
        sequence = self.executor.create() if overlapping is None else overlapping.create(n_tokens)
        self._members.append(member)
        return sequence

    def branch(self, member: CachedSequence, donor: int) -> int:
        """Add a sequence branched from another one; returns its number."""
        sequence = self.executor.branch(donor)
        self._members.append(member)
        return sequence

    def leave(self, member: CachedSequence, sequence: int) -> None:
        """Remove a sequence and free its memory."""
        if not self._closed:
            self._members.remove(member)
            self.executor.free(sequence)

    def replace(self, member: CachedSequence, successor: CachedSequence) -> None:
        """Put another sequence in a sequence's place, as the most recently used one."""
        self._members.remove(member)
        self._members.append(successor)

    @property
    def members(self) -> tuple[CachedSequence, ...]:
        """All sequences, least recently used first."""
        return tuple(self._members)

    def evaluate(self, member: CachedSequence, batch: Batch) -> Floats:
        """Evaluate a batch. If memory is short, idle sequences lose theirs, least recently used first."""
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
        """Take the memory of the least recently used idle sequence outside `kept`; returns whether there was one."""
        resting = next((other for other in self._members if other.rests and other not in kept), None)
        if resting is not None:
            resting.forget()
        return resting is not None

    @property
    def reading(self) -> WeightReads:
        """Weights the executor has read so far."""
        return self.executor.reading

    def take_notices(self) -> tuple[str, ...]:
        """Notices of the executor since the last call."""
        return () if self._eventful is None else self._eventful.take_notices()

    @property
    def idle_s(self) -> float:
        """Seconds since a request was last running."""
        if any(member.runs for member in tuple(self._members)):
            return 0.0
        return time.monotonic() - self._rests_since

    def note_rest(self) -> None:
        """Note that an answer has ended: its stop flag must not interrupt passes that belong to no answer."""
        if self._interruptible is not None and not self._closed:
            self._interruptible.heed(None)
        self._rests_since = time.monotonic()

    def check_writes(self) -> None:
        """Raises UnsupportedModel for a model that cannot continue texts."""
        if not self._writes:
            raise UnsupportedModel("this model reads whole texts for embeddings and writes none: use embed, or serve")

    def check_open(self) -> None:
        """Raises EngineClosed after `close`."""
        if self._closed:
            raise EngineClosed("the model is closed; load it again")

    def stop(self) -> None:
        """End every running generation within one step."""
        for member in tuple(self._members):
            member.stop()

    def close(self) -> None:
        """Stop running generations, wait for the current step, and free the memory."""
        self.stop()
        with self.lock:
            self._closed = True
            self._rests_since = time.monotonic()  # ends whatever runs in idle time
            self._members.clear()
            self.executor.close()
