"""The overlap executor: a model whose matmuls run on an accelerator, with sequences resident there or in host memory.

In: batches of tokens. Out: logits. `evaluate` runs a batch from start to end, as any evaluator does; `advance` starts
batches and makes one pass over everything in flight, so that attention on the CPU need not be awaited. Knows nothing of
text, sampling or sessions; one call at a time (callers hold a lock).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.engine.kv.saved_state import check_same, saved_number, seal, unseal
from edgeinfer.engine.measure.power import PowerLimiter
from edgeinfer.engine.overlap.choosing import Choosing
from edgeinfer.engine.overlap.micro_batches import InFlightBatch
from edgeinfer.engine.overlap.passes import Pair
from edgeinfer.engine.overlap.sequences import BatchPiece, KVPartition, KVPartitions, SequenceTracker, cut, whole
from edgeinfer.engine.run.evaluators import EvaluatorCapabilities, Tally
from edgeinfer.engine.run.executor import MAGIC, Executor, compiled
from edgeinfer.engine.shared_lane.timeline import StepTimeline
from edgeinfer.errors import EngineClosed
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import PAGE, Batch, Floats, Int32s
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.weights import WeightReads
from edgeinfer.scheduling.batch.costs import SequenceGroup
from edgeinfer.scheduling.batch.schedules import Prediction, Schedule
from edgeinfer.steps import Progress, no_progress


class OverlapExecutor:
    """Runs one model on an accelerator and the CPU and owns both. Use it with `with` or call `close()`.

    A sequence gets its KV partition when it is created and keeps it until it is freed: keys and values are never moved
    between KV partitions, whose forms differ between devices. Truncating, branching, restoring or freeing a sequence
    cancels its in-flight batch; a device failure cancels all of them.
    """

    batch_invariant = False
    reading = WeightReads()

    def __init__(
        self,
        pair: Pair,
        fingerprint: str,
        choosing: Choosing,
        options: DeviceOptions | None = None,
        power_limiter: PowerLimiter | None = None,
        notices: tuple[str, ...] = (),
        spare_pages: int = 0,
    ) -> None:
        """`options`: of the CPU. `power_limiter`: None for no limit. `spare_pages`: `n_spare` of `KVPartitions`."""
        self.limits = replace(pair.offloaded, n_pages=pair.resident.n_pages + pair.offloaded.n_pages)
        self.device, self.notices = pair.name, notices
        self.n_workers = 1 if options is None else options.n_workers or 1
        self.power_limiter = PowerLimiter.free(self.n_workers) if power_limiter is None else power_limiter
        self._options, self._fingerprint, self._choosing = options, fingerprint, choosing
        self._pair: Pair | None = pair
        n_context, memory = self.limits.n_context, pair.accelerator.memory
        self._kv_partitions = KVPartitions(
            KVPartition("accelerator", memory, pair.resident.n_pages, n_context),
            KVPartition("memory", pair.host, pair.offloaded.n_pages, n_context),
            n_context,
            spare_pages,
        )
        self._tracker = SequenceTracker(self._kv_partitions, pair.store)
        self.timeline = StepTimeline((), 0.0, 0.0)
        """When each device worked: spans that ended in the last pass, some of which the CPU may have begun earlier."""
        self.tallies: dict[Schedule, Tally] = {}
        """Number of `advance` passes so far."""
        self.capabilities = EvaluatorCapabilities(overlapping=self)

    def __enter__(self) -> OverlapExecutor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free memory, threads and devices; in-flight batches are dropped. Safe to call twice."""
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.close()

    def beside(
        self, spec: ModelSpec, file: GGUFFile, fingerprint: str, limits: Limits, progress: Progress = no_progress
    ) -> Executor:
        """Another model, on the CPU alone, taking turns with this one's attention. Close it too. Raises DoesNotFit."""
        device = self._open().host_device
        lane = compiled(device, spec, file, limits, progress)
        return Executor(
            device, lane, limits, fingerprint, self._options, is_guest=True, power_limiter=self.power_limiter
        )

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        return ()

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory on both sides; 0 when closed."""
        return 0 if self._pair is None else self._pair.resident_bytes

    @property
    def n_free_pages(self) -> int:
        return self._kv_partitions.n_free_pages

    @property
    def peaks(self) -> Floats | None:
        return None

    @property
    def n_joins(self) -> int:
        """How often a batch returned from the CPU and joined a pass that had not waited for it."""
        return self._open().passes.n_joins

    @property
    def in_flight(self) -> frozenset[int]:
        """Sequences with a batch in flight."""
        return self._tracker.sequences

    def is_resident(self, sequence: int) -> bool:
        """Whether a sequence's KV cache is on the accelerator."""
        return self._kv_partitions.place_of(sequence).kv_partition is self._kv_partitions.resident

    def use(self, schedule: str) -> None:
        """Follow another schedule from the next pass on. Raises BadSetting for an unknown one."""
        self._choosing.use(schedule)

    def create(self, n_tokens: int | None = None) -> int:
        """A new empty sequence, resident if the accelerator has room for `n_tokens` (None: the whole context)."""
        return self._kv_partitions.create(n_tokens)

    def branch(self, sequence: int) -> int:
        """A new sequence that starts with the same cached tokens, in the same KV partition."""
        self._tracker.break_off(sequence)
        return self._kv_partitions.branch(sequence)

    def free(self, sequence: int) -> None:
        """Drop a sequence and free its pages."""
        self._tracker.break_off(sequence)
        self._kv_partitions.free(sequence)

    def truncate(self, sequence: int, n_cached: int) -> int:
        """Drop a sequence's tokens from position n_cached on; returns how many are left."""
        self._tracker.break_off(sequence)
        place = self._kv_partitions.place_of(sequence)
        return place.kv_partition.cache.truncate(place.number, n_cached)

    def n_cached(self, sequence: int) -> int:
        """The number of committed tokens of a sequence."""
        place = self._kv_partitions.place_of(sequence)
        return place.kv_partition.cache.n_cached(place.number)

    def evaluate(self, batch: Batch) -> Floats:
        """Logits of the batch's outputs: float32[O, V], valid until the next call; the tokens stay pending.

        Attention of both KV partitions runs at the same time; in-flight batches of other sequences stay where they are.
        Raises ContextOverflow or DoesNotFit before anything is computed, DeviceFailed.
        """
        pair, pieces = self._begin(), cut(batch)
        flights = self._start(pieces)
        with self._watched(pair):
            pair.passes.lockstep([flights])
        logits = [(flight, flight.logits) for flight in self._tracker.land(flights) if flight.logits is not None]
        if len(logits) == 1:
            return logits[0][1]
        joined = np.zeros((len(batch.outputs), pair.n_vocab), np.float32)
        for flight, own in logits:
            joined[np.isin(batch.outputs, flight.members)] = own
        return joined

    def advance(self, batches: Sequence[Batch]) -> Mapping[int, Floats]:
        """Start these batches, one for each sequence with none in flight, then run a pass over all in-flight batches.

        Returns logits by sequence for the batches that are done: float32[O, V], valid until the next call. Commit them
        before that call (the path given to `commit` holds indices within the sequence's own batch). Raises as
        `evaluate`.
        """
        pair = self._begin()
        self._start([whole(batch) for batch in batches])
        resident, offloaded = self._tracker.flights(resident=True), self._tracker.flights(resident=False)
        if not resident and not offloaded:
            return {}
        choice = self._choosing.next(_group(resident), _group(offloaded))
        flights = [*resident, *offloaded]
        before = _travelled(flights)
        with self._watched(pair):
            _run(pair, choice, resident, offloaded)
        self._count(choice, (_travelled(flights) - before) / pair.passes.n_stages)
        landed = self._tracker.land(flights)
        return {flight.sequence: flight.logits for flight in landed if flight.logits is not None}

    def commit(self, sequence: int, path: Int32s) -> None:
        """Commit the pending tokens with these batch indices (a chain of parents) as the sequence's next positions."""
        self._tracker.commit(sequence, path)

    def pretend(self, sequence: int, n_tokens: int) -> None:
        """Count tokens as cached, with zeros for keys and values; for measurements. Raises as `KVCache.refill`."""
        self._open()
        self._tracker.break_off(sequence)
        place = self._kv_partitions.place_of(sequence)
        place.kv_partition.fill(place.number, n_tokens, None)

    def save(self, sequence: int) -> bytes:
        """The cached keys and values of a sequence; `restore` needs the same model and devices."""
        self._open()
        place = self._kv_partitions.place_of(sequence)
        header = {**self._identity(place.kv_partition), "n_tokens": place.kv_partition.cache.n_cached(place.number)}
        return seal(MAGIC, header, place.kv_partition.read(place.number))

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace a sequence's cached tokens by a saved state, in the KV partition that the state was saved from.

        Raises EdgeInferError if the state is damaged or from another model, device or kv; the sequence is unchanged.
        Raises ContextOverflow or DoesNotFit if it has no room; the sequence is then empty, or unchanged in its KV
        partition.
        """
        self._open()
        header, body = unseal(MAGIC, state, "the saved state")
        kv_partition = (
            self._kv_partitions.resident
            if header.get("home") == self._kv_partitions.resident.name
            else self._kv_partitions.offloaded
        )
        check_same(header, self._identity(kv_partition))
        self._tracker.break_off(sequence)
        self._kv_partitions.settle(sequence, kv_partition)
        kv_partition.fill(self._kv_partitions.place_of(sequence).number, saved_number(header, "n_tokens"), body)

    def _identity(self, kv_partition: KVPartition) -> dict[str, str | int]:
        """What a saved state must agree on with this executor and one of its KV partitions."""
        return {
            "model": self._fingerprint,
            "device": self.device,
            "kv": self.limits.kv,
            "page_tokens": PAGE,
            "page_bytes": kv_partition.page_bytes(),
            "home": kv_partition.name,
        }

    def _open(self) -> Pair:
        if self._pair is None:
            raise EngineClosed("the model is closed; load it again")
        return self._pair

    def _begin(self) -> Pair:
        """Before each pass: drop uncommitted tokens and apply the power limiter to the CPU."""
        pair = self._open()
        self._tracker.discard_pending()
        self.power_limiter.look()
        pair.host.use(self.power_limiter.policy.most_workers)
        return pair

    def _start(self, pieces: Sequence[BatchPiece]) -> list[InFlightBatch]:
        for piece in pieces:
            if len(piece.members) > self.limits.max_tokens or len(piece.batch.outputs) > self.limits.max_outputs:
                raise ValueError(
                    f"a batch has at most {self.limits.max_tokens} tokens and {self.limits.max_outputs} outputs"
                )
        return self._tracker.start(pieces)

    @contextmanager
    def _watched(self, pair: Pair) -> Iterator[None]:
        """A pass with its timeline; an exception cancels everything in flight."""
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            self._tracker.break_off_all()
            pair.passes.forget()
            raise
        spans = [*pair.accelerator.take_spans(), *pair.host.take_spans()]
        self.timeline = StepTimeline(tuple(sorted(spans, key=lambda span: span.ended)), began, time.perf_counter())

    def _count(self, choice: Prediction, n_tokens: float) -> None:
        tally, seconds = self.tallies.setdefault(choice.schedule, Tally()), self.timeline.ended - self.timeline.began
        tally.n_passes += 1
        tally.seconds += seconds
        tally.predicted_s += choice.seconds
        tally.n_tokens += n_tokens
        tally.predicted_tokens += choice.tokens
        self._choosing.learn(choice, n_tokens, seconds)


def _travelled(flights: Sequence[InFlightBatch]) -> int:
    """Stages that the tokens of in-flight batches have passed."""
    return sum(flight.stage * flight.n_tokens for flight in flights)


def _group(flights: Sequence[InFlightBatch]) -> SequenceGroup:
    """Tokens of in-flight batches; each costs as much as a decoding sequence."""
    return SequenceGroup(sum(flight.n_tokens for flight in flights), sum(flight.n_seen for flight in flights))


def _run(pair: Pair, choice: Prediction, resident: Sequence[InFlightBatch], offloaded: Sequence[InFlightBatch]) -> None:
    """Run one pass by a schedule."""
    match choice.schedule:
        case "accelerator-only":
            pair.passes.lockstep([resident])
        case "asymmetric":
            taking_part = _first(offloaded, choice.n_offloaded)
            behind = _first(taking_part, choice.behind)
            pair.passes.lockstep([[*resident, *taking_part[len(behind) :]], behind])
        case "overlap":
            pair.passes.overlapping([*resident, *offloaded])


def _first(flights: Sequence[InFlightBatch], n_tokens: int) -> list[InFlightBatch]:
    """The oldest in-flight batches that together have this many tokens."""
    found: list[InFlightBatch] = []
    for flight in flights:
        if sum(each.n_tokens for each in found) >= n_tokens:
            break
        found.append(flight)
    return found
