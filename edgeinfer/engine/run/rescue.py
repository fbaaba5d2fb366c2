"""An evaluator that survives the failure of its device: another one continues each text from the same token.

In: an evaluator, and a function that opens another one. Out: the same calls, and a notice when the device changes.
Remembers the text of every sequence, because keys and values are lost with a device and must be computed again. Knows
no devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from edgeinfer.backends.base import Limits
from edgeinfer.engine.kv.saved_state import ReadText, cut_whole, seal, unseal
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.run.evaluators import EvaluatorCapabilities, SequenceEvaluator, Tally
from edgeinfer.errors import ContextOverflow, DeviceFailed, DoesNotFit, EdgeInferError
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import Batch, Floats, Int32s, join
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.weights import WeightReads
from edgeinfer.scheduling.batch.schedules import Schedule
from edgeinfer.steps import Progress, no_progress

CLOSING_S = 2.0
"""How long a failed evaluator may take to close."""
MAGIC = b"EDGEINFER TOKENS KV 2\n"
Open = Callable[[], SequenceEvaluator]


@dataclass(slots=True)
class _Known:
    """A sequence: its number in the current evaluator (None: must be read there first) and its text.

    `text`: None if its tokens were never read (measurements).
    """

    number: int | None
    text: ReadText | None = field(default_factory=ReadText)


class Rescued:
    """One model on an evaluator, and on `fallback` once that has failed. Owns the one in use. Close it after use."""

    def __init__(self, evaluator: SequenceEvaluator, fallback: Open) -> None:
        self._inner = evaluator
        self._of_inner = evaluator.capabilities
        self._capabilities = self._with_own(self._of_inner)
        self._fallback: Open | None = fallback
        self._known: dict[int, _Known] = {}
        self._pending: Batch | None = None
        self._lost: DeviceFailed | MemoryError | None = None
        """Why the device failed, while there is no memory for another one."""
        self._next, self._told = 0, list[str]()
        self.power_limiter: PowerLimiter = evaluator.power_limiter

    def close(self) -> None:
        """Free everything. Safe to call twice."""
        self._fallback = None
        self._inner.close()

    @property
    def capabilities(self) -> EvaluatorCapabilities:
        """Capabilities of the evaluator in use, plus notices; a new record whenever the evaluator has a new one."""
        if self._inner.capabilities is not self._of_inner:
            self._of_inner = self._inner.capabilities
            self._capabilities = self._with_own(self._of_inner)
        return self._capabilities

    def _with_own(self, inner: EvaluatorCapabilities) -> EvaluatorCapabilities:
        """Capabilities that this object provides in place of the wrapped evaluator's."""
        return replace(inner, eventful=self, overlapping=None, pages=None, shifted=None)

    @property
    def batch_invariant(self) -> bool:
        return self._inner.batch_invariant

    @property
    def device(self) -> str:
        """The name of the device in use."""
        return self._inner.device

    @property
    def n_workers(self) -> int:
        return self._inner.n_workers

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        return self._inner.affinity

    @property
    def limits(self) -> Limits:
        return self._inner.limits

    @property
    def resident_bytes(self) -> int:
        return self._inner.resident_bytes

    @property
    def n_free_pages(self) -> int:
        return self._inner.n_free_pages

    @property
    def peaks(self) -> Floats | None:
        return self._inner.peaks

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices that apply from the start."""
        return self._inner.notices

    @property
    def reading(self) -> WeightReads:
        """Weights read by passes on the device in use."""
        return self._inner.reading

    def take_notices(self) -> tuple[str, ...]:
        """Notices since the last call."""
        told, self._told = tuple(self._told), []
        eventful = self._inner.capabilities.eventful
        return told if eventful is None else told + eventful.take_notices()

    def create(self) -> int:
        """A new empty sequence."""
        return self._join(_Known(self._inner.create() if self._lost is None else None))

    def branch(self, sequence: int) -> int:
        """A new sequence with the same cached tokens."""
        known = self._known[sequence]
        twin = None if known.number is None else self._inner.branch(known.number)
        return self._join(_Known(twin, None if known.text is None else known.text.copied()))

    def _join(self, known: _Known) -> int:
        self._next += 1
        self._known[self._next] = known
        return self._next

    def free(self, sequence: int) -> None:
        """Drop a sequence and free its pages."""
        known = self._known.pop(sequence)
        if known.number is not None:
            self._without(known, lambda number: self._inner.free(number))

    def truncate(self, sequence: int, n_cached: int) -> int:
        """Drop a sequence's tokens from position n_cached on, or from before it; returns how many are left."""
        known = self._known[sequence]

        def cut(n_left: int) -> int:
            reached = [n_left]
            self._without(known, lambda number: reached.append(self._inner.truncate(number, n_left)))
            return reached[-1]

        n_left = cut(n_cached) if known.text is None else cut_whole(n_cached, known.text.whole_before, cut)
        if n_left == 0:
            known.text = ReadText()
        elif known.text is not None:
            known.text.cut(n_left)
        return n_left

    def n_cached(self, sequence: int) -> int:
        """The number of committed tokens of a sequence."""
        known = self._known[sequence]
        return len(known.text or ()) if known.number is None else self._inner.n_cached(known.number)

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of the batch's outputs, from the other device if this one fails. Raises as both do."""
        self._pending = batch
        try:
            numbered = self._numbered(batch)
            return self._inner.evaluate(numbered)
        except (DeviceFailed, MemoryError) as reason:
            self._change(reason)
            return self._inner.evaluate(self._numbered(batch))

    def _numbered(self, batch: Batch) -> Batch:
        """The batch with the evaluator's own sequence numbers; sequences it lacks are read first."""
        numbers = np.array([self._there(self._known[each]) for each in batch.sequences.tolist()], np.int32)
        return replace(batch, sequences=numbers)

    def _change(self, reason: DeviceFailed | MemoryError) -> None:
        """Open the other device; sequences are read there when they are next needed.

        Raises DeviceFailed if there is none, and DoesNotFit while there is no memory for it: the next pass tries again.
        """
        fallback, self._fallback = self._fallback, None
        why = str(reason) or "it ran out of memory"
        if fallback is None:
            raise DeviceFailed(why) from reason
        failed = self._inner
        closing = threading.Thread(target=_closed, args=(failed,), daemon=True)  # closing may stall too
        closing.start()
        closing.join(CLOSING_S)
        try:
            self._inner = fallback()
        except DoesNotFit as other:
            self._fallback, self._lost = fallback, reason
            for known in self._known.values():
                known.number = None
            raise DoesNotFit(
                f"{failed.device} failed ({why}), and there is no memory to go on without it: {other}; the text so far "
                "is kept: close other programs and ask again"
            ) from reason
        except EdgeInferError as other:
            raise DeviceFailed(f"{failed.device} failed ({why}), and nothing else can go on: {other}") from reason
        self._lost = None
        self.power_limiter = self._inner.power_limiter
        self._told.append(f"{failed.device} failed and was dropped; {self._inner.device} goes on ({why})")
        for known in self._known.values():
            known.number = None

    def _there(self, known: _Known) -> int:
        """The evaluator's number of a sequence, after reading its text there if necessary. Raises as the evaluator."""
        if self._lost is not None:
            self._change(self._lost)
        if known.number is not None:
            return known.number
        number = self._inner.create()
        try:
            for batch in () if known.text is None else known.text.batches(number, self._inner.limits.max_tokens):
                self._inner.evaluate(batch)
                self._inner.commit(number, batch.parents + np.int32(1))
        except BaseException:
            self._inner.free(number)
            raise
        known.number = number
        return number

    def _without(self, known: _Known, act: Callable[[int], None]) -> None:
        """Call `act`, which returns nothing, on a sequence; if the device fails, change to the other device."""
        if known.number is None:
            return
        try:
            act(known.number)
        except (DeviceFailed, MemoryError) as reason:
            with suppress(DoesNotFit):  # the next pass raises it
                self._change(reason)

    def commit(self, sequence: int, path: Int32s) -> None:
        """Commit the pending tokens with these batch indices (a chain of parents) as the sequence's next positions."""
        known, batch = self._known[sequence], self._pending
        if known.text is not None and batch is not None:
            known.text.extend(batch, path)
        self._without(known, lambda number: self._inner.commit(number, path))

    def pretend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached without reading any; for measurements."""
        known = self._known[sequence]
        known.text = ReadText()
        number = self._there(known)
        self._inner.pretend(number, n_tokens)
        known.text = None if n_tokens else ReadText()

    def save(self, sequence: int) -> bytes:
        """The saved state of a sequence; `restore` needs the same model and device."""
        known = self._known[sequence]
        try:
            number = self._there(known)
            state = self._inner.save(number)
        except (DeviceFailed, MemoryError) as reason:
            self._change(reason)
            state = self._inner.save(self._there(known))
        text, rows = ("", b"") if known.text is None else known.text.sealed()
        return seal(MAGIC, {"text": text, "device": self._inner.device}, rows + state)

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace a sequence's cached tokens by a saved state. Raises as the evaluator does."""
        known = self._known[sequence]
        header, body = unseal(MAGIC, state, "the saved state")
        told = str(header.get("text", ""))
        text, inner = ReadText.unsealed(told, body) if told else (None, body)
        before, known.text = known.text, ReadText()
        try:
            number = self._there(known) if known.number is None else known.number
            self._inner.restore(number, inner)
        except (ContextOverflow, DoesNotFit):
            raise
        except (DeviceFailed, MemoryError) as reason:
            self._change(reason)
        except BaseException:
            known.text = before
            raise
        known.text = text

    def beside(
        self, spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits, progress: Progress = no_progress
    ) -> SequenceEvaluator:
        """Another model on the same device, not protected against its failure."""
        return self._inner.beside(spec, file, fingerprint, limits, progress)


class RescuedBatches(Rescued):
    """`Rescued` for an evaluator with batches in flight; a fallback without them finishes each batch in one pass."""

    def __init__(self, evaluator: SequenceEvaluator, fallback: Open) -> None:
        super().__init__(evaluator, fallback)
        self._under_way: dict[int, Batch] = {}
        self._done: dict[int, tuple[Batch, int]] = {}  # batches of the last pass, and where their tokens begin in it

    def _with_own(self, inner: EvaluatorCapabilities) -> EvaluatorCapabilities:
        """As in `Rescued`, with this object as `overlapping` whichever evaluator is in use."""
        return replace(super()._with_own(inner), overlapping=self)

    @property
    def in_flight(self) -> frozenset[int]:
        """Sequences with a batch in flight."""
        return frozenset(self._under_way)

    @property
    def tallies(self) -> Mapping[Schedule, Tally]:
        """Totals of the evaluator in use."""
        overlapping = self._inner.capabilities.overlapping
        return {} if overlapping is None else overlapping.tallies

    def create(self, n_tokens: int | None = None) -> int:
        """A new empty sequence that may grow to this many tokens; None: to the whole context."""
        inner = self._inner.capabilities.overlapping
        return super().create() if inner is None else self._join(_Known(inner.create(n_tokens)))

    def advance(self, batches: Sequence[Batch]) -> Mapping[int, Floats]:
        """Start these batches and run one pass, as `Overlapping.advance`, whichever evaluator is in use."""
        self._under_way |= {int(batch.sequences[0]): batch for batch in batches}
        try:
            return self._landed(batches)
        except (DeviceFailed, MemoryError) as reason:
            self._change(reason)
            return self._landed(())
        except BaseException:  # none of these batches has started
            for batch in batches:
                del self._under_way[int(batch.sequences[0])]
            raise

    def _landed(self, batches: Sequence[Batch]) -> Mapping[int, Floats]:
        if self._lost is not None:
            self._change(self._lost)
        inner = self._inner.capabilities.overlapping
        if inner is None:
            return self._joined()
        numbered = [self._numbered(batch) for batch in batches]
        names = {known.number: name for name, known in self._known.items()}
        found = {names[number]: logits for number, logits in inner.advance(numbered).items()}
        self._done = {sequence: (self._under_way.pop(sequence), 0) for sequence in found}
        return found

    def _joined(self) -> Mapping[int, Floats]:
        """One pass over as many in-flight batches as its limits allow."""
        limits, taken = self._inner.limits, list[Batch]()
        n_tokens, n_outputs = limits.max_tokens, limits.max_outputs
        for batch in self._under_way.values():
            if len(batch.tokens) <= n_tokens and len(batch.outputs) <= n_outputs:
                n_tokens, n_outputs = n_tokens - len(batch.tokens), n_outputs - len(batch.outputs)
                taken.append(batch)
        if not taken:
            return {}
        found, self._done = {}, {}
        logits, first, row = self._inner.evaluate(self._numbered(join(taken))), 0, 0
        for batch in taken:
            sequence, stop = int(batch.sequences[0]), row + len(batch.outputs)
            found[sequence] = logits[row:stop]
            self._done[sequence] = self._under_way.pop(sequence), first
            first, row = first + len(batch.tokens), stop
        return found

    def evaluate(self, batch: Batch) -> Floats:
        """As `Rescued.evaluate`."""
        self._done = {}
        return super().evaluate(batch)

    def commit(self, sequence: int, path: Int32s) -> None:
        """Commit the pending tokens with these indices within the sequence's own batch."""
        if sequence not in self._done:
            super().commit(sequence, path)
            return
        known, (batch, first) = self._known[sequence], self._done[sequence]
        if known.text is not None:
            known.text.extend(batch, path)
        self._without(known, lambda number: self._inner.commit(number, path + np.int32(first)))

    def truncate(self, sequence: int, n_cached: int) -> int:
        """Drop a sequence's tokens from position n_cached on and its in-flight batch; returns how many are left."""
        self._under_way.pop(sequence, None)
        return super().truncate(sequence, n_cached)

    def free(self, sequence: int) -> None:
        """Drop a sequence and free its pages."""
        self._under_way.pop(sequence, None)
        super().free(sequence)


def _closed(evaluator: SequenceEvaluator) -> None:
    """Close a failed evaluator and ignore its errors."""
    with suppress(Exception):
        evaluator.close()
