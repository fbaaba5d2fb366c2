"""The sequences that share one executor: its lock, and which idle sequences lose their memory to others.

In: sequences, batches. Out: logits. One evaluation at a time, under a lock that is handed to the thread that has waited
longest. When memory runs short, idle sequences lose theirs, least recently used first, and read their text again when
they continue. Knows no text.
"""

from __future__ import annotations

import re
import threading
import time
from _thread import RLock
from collections import deque
from collections.abc import Callable, Collection, Sequence

from edgeinfer.engine.requests.sampling import LikeliestFinder
from edgeinfer.engine.run.cached import CachedSequence
from edgeinfer.engine.run.evaluators import SequenceEvaluator
from edgeinfer.errors import DoesNotFit, EngineClosed, UnsupportedModel
from edgeinfer.graph.step import Batch, Floats
from edgeinfer.offload.weights import WeightReads

LOOK_S = 0.5
"""Seconds after which a thread that waits for a lock looks for itself whether it is its turn."""
_COUNT = re.compile(r"\bcount=(\d+)")
"""In the text of an RLock, which every version of Python writes; only some have a method for it."""


class Pool:
    """The sequences that share one executor."""

    def __init__(self, executor: SequenceEvaluator, *, writes: bool = True) -> None:
        """`writes`: whether the model can continue texts; if not, it only reads them, for embeddings."""
        self.executor, self._writes = executor, writes
        has = executor.capabilities
        self._interruptible, self._eventful, self._overlapping = has.interruptible, has.eventful, has.overlapping
        self.lock = FairLock()
        self.scales = has.scales
        """Scales of LoRA adapters that new sequences are read with; () if passes state none."""
        self._members: list[CachedSequence] = []
        self._closed = False
        self.finder: LikeliestFinder | None = None
        """Finds likely tokens of passes, if there is one. Usable by whoever has the lock."""
        self.gives_up: Callable[[CachedSequence], object] = lambda _: None
        """Called with a sequence that is about to lose its memory to others, under the lock."""
        self._rests_since = time.monotonic()
        self.n_readings = self.n_read = 0
        """Passes that read texts for embeddings, and their tokens."""

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

    def evaluate(self, members: Sequence[CachedSequence], batch: Batch) -> Floats:
        """Evaluate a batch of these. If memory is short, idle sequences lose theirs, least recently used first."""
        others = [each for each in self._members if each not in members]
        self._members = [*others, *members]  # at once: a signal handler may raise at any point
        if self._interruptible is not None:
            self._interruptible.heed(members[0].stopped if len(members) == 1 else None)
        while True:
            try:
                return self.executor.evaluate(batch)
            except DoesNotFit:
                if not self.make_room(members):
                    raise

    def make_room(self, kept: Collection[CachedSequence]) -> bool:
        """Take the memory of the least recently used idle sequence outside `kept`; returns whether there was one."""
        resting = next((other for other in self._members if other.rests and other not in kept), None)
        if resting is not None:
            self.gives_up(resting)
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

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and the model with it."""
        return self._closed

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


class FairLock(RLock):  # type: ignore[misc]  # final in typeshed alone
    """A lock that its thread may take again, and that goes to whoever has waited longest. Use it with `with`.

    Releasing it is `RLock`'s own, one step that neither a signal nor a full stack can break off. Threads that wait
    stand in a queue, and only the first of them waits for the lock itself.
    """

    def __init__(self) -> None:
        self._queue: deque[threading.Lock] = deque()

    @property
    def is_held(self) -> bool:
        """Whether the calling thread holds it."""
        return bool(self._is_owned())  # type: ignore[attr-defined]  # as threading.Condition asks

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; returns whether it did. Without `blocking`, a finalizer may call it at any point."""
        n_before, turn = self._n_acquired(), None
        try:
            if n_before or not blocking or not self._queue:
                if RLock.acquire(self, False):
                    return True
                if not blocking:
                    return False
            turn = threading.Lock()
            turn.acquire()
            self._wait(turn)
            RLock.acquire(self)
            self._leave(turn)
            return True
        except BaseException:  # a signal handler raised, perhaps just after the lock was acquired
            if self._n_acquired() > n_before:
                self.release()
            if turn is not None:
                self._leave(turn)
            raise

    __enter__ = acquire

    def _n_acquired(self) -> int:
        """How often the calling thread has acquired it and not yet released it."""
        count = _COUNT.search(repr(self)) if self.is_held else None
        return 0 if count is None else int(count[1])

    def _wait(self, turn: threading.Lock) -> None:
        """Return once `turn` is the first of the queue."""
        self._queue.append(turn)
        while self._queue[0] is not turn:
            turn.acquire(timeout=LOOK_S)

    def _leave(self, turn: threading.Lock) -> None:
        """Leave the queue, if in it, and tell the next thread that it is the first one now."""
        try:
            self._queue.remove(turn)
            self._queue[0].release()
        except (ValueError, IndexError, RuntimeError):  # it has left; nobody waits; the next one knows already
            pass
