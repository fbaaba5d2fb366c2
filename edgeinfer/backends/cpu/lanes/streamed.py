"""A model on the CPU that reads a part of its weights from a bundle file in every pass.

In: what stays in memory, steps. Out: logits, bit-identical to those of a lane that holds all weights. A pass is cut
into launches at each bundle that must arrive first; meanwhile reading continues, even into the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits, OpSeconds, Timing
from edgeinfer.backends.capabilities import KernelTime, LaneCapabilities
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.bundles.contents import Contents, contents_of
from edgeinfer.backends.cpu.lanes.compiled_slots import CompiledSlots, FilePlace, can_fill
from edgeinfer.backends.cpu.lanes.lane import CpuLane, LaneResources, PassKind
from edgeinfer.backends.cpu.lanes.mixtures import Mixtures, expert_bundles, is_streamed
from edgeinfer.backends.cpu.lanes.streamed_weights import Bundles, StreamedWeights
from edgeinfer.backends.cpu.lowering.fusion import Sections
from edgeinfer.backends.cpu.memory.packing import PanelWeights
from edgeinfer.backends.cpu.record_layers import RecordWindow
from edgeinfer.backends.cpu.workers.tape import Call, Tape
from edgeinfer.backends.cpu.workers.timing import call_times, op_times
from edgeinfer.backends.cpu.workers.worker_pool import CallTimes
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.step import Floats, Step
from edgeinfer.jit.memory import address, paged
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.offload.bundle import Bundle
from edgeinfer.offload.expert_cache import ExpertCache
from edgeinfer.offload.pinned import PinnedBundles
from edgeinfer.offload.slots import Filling, Slots
from edgeinfer.offload.weights import OffloadedWeights, RecordUse, WeightReads
from edgeinfer.offload.window import BundleWindow
from edgeinfer.steps import Progress, no_progress

PATIENCE_S = 0.0003
"""How long workers wait for the next launch before they sleep: passes wait for the disk."""


@dataclass(frozen=True, slots=True)
class StreamedCalls:
    """Calls of one launch, and what must be in memory: a streamed bundle, chosen experts or records, if any."""

    bundle: int | None
    mixture: int | None
    feed: object | None
    tape: Tape


class StreamedLane(CpuLane):
    """A compiled model with a window. `limits.stored` says what stays."""

    contents: Contents
    _source: Bundles
    _pinned: PinnedBundles
    _ring: NDArray[np.uint8]
    _window: BundleWindow
    _places: dict[int, int]
    _launches: dict[PassKind, list[StreamedCalls]]
    _read_before: WeightReads
    _timing: Timing
    _mixtures: Mixtures | None
    _records: RecordWindow | None

    def __init__(
        self,
        spec: ModelSpec,
        file: GGUFFile,
        limits: Limits,
        resources: LaneResources,
        progress: Progress,
        sections: Sections | None = None,
    ) -> None:
        """Starts reading at once; if the lane cannot be built, stops it again."""
        self._held = ExitStack()
        try:
            super().__init__(spec, file, limits, resources, progress, sections)
        except BaseException:
            self._held.close()
            raise

    def _weights(self, resources: LaneResources, progress: Progress) -> PanelWeights:
        """Read the pinned bundles, and create what reads the others."""
        stored = self._limits.stored
        assert stored is not None
        self._launches, self._places, self._read_before = {}, {}, WeightReads()
        self._timing = Timing(0.0, ())
        self.contents, self._n_readers = self._contents_of(stored), stored.n_readers
        self._source = Bundles(stored, self.contents)
        self._held.callback(self._source.close)
        self._pinned = PinnedBundles(self._source, self.contents.bundles, stored.pinned, stored.n_readers, progress)
        self._held.callback(self._pinned.close)
        self._ring = paged(stored.window_bytes)
        self._stream()
        self._held.callback(self._leave_window)
        self._mixtures = self._open_mixtures(stored)
        if self._mixtures is not None:
            self._held.callback(self._mixtures.close)
        records = self.contents.records
        self._records = None if records is None else records.open(self._source, stored, self._library)
        if self._records is not None:
            self._held.callback(self._records.close)
        self._worker_pool.patience_s = PATIENCE_S
        held = self._pinned.nbytes + self._ring.nbytes + stored.cache_bytes + stored.record_bytes
        return StreamedWeights(self.contents, self._file.tensors, resources.isa_name, self._places, held)

    def _contents_of(self, stored: OffloadedWeights) -> Contents:
        return contents_of(self._spec, self._file.tensors, by_records=stored.by_records)

    def _open_mixtures(self, stored: OffloadedWeights) -> Mixtures | None:
        """The cache for experts, if there are any."""
        bundles = expert_bundles(self.contents)
        if not bundles:
            return None
        slot_bytes = max(bundle.padded_bytes for layer in bundles for bundle in layer)
        memory = paged(stored.cache_bytes // slot_bytes, slot_bytes)
        most_used = max(op.active for op in self._spec.ops() if isinstance(op, Experts) and is_streamed(op))
        n_readers = min(stored.n_readers, max(1, len(memory) - most_used))  # fewer experts than there is room for
        cache = ExpertCache(self._source, bundles, memory, self._filling, n_readers)
        return Mixtures(self._spec, self._file, self.contents, cache)

    def _filling(self, bundles: Sequence[Bundle], memory: NDArray[np.uint8], n_readers: int) -> Filling:
        """Fills slots with bundles: without the interpreter if the file can be read that way."""
        descriptor = self._source.descriptor
        if descriptor is None or not can_fill():
            return Slots(self._source, bundles, memory, n_readers)
        places = [FilePlace(self._source.offset(bundle), bundle.padded_bytes) for bundle in bundles]
        return CompiledSlots(descriptor, places, memory, n_readers, self._library)

    def _stream(self) -> None:
        """Start reading the bundles that do not stay, and record the place of every bundle."""
        streamed = [
            bundle for bundle in self.contents.bundles if bundle.number not in self._pinned.numbers and bundle.is_dense
        ]
        largest = max((bundle.padded_bytes for bundle in streamed), default=0)
        if self._ring.nbytes < 2 * largest:  # all of them were to stay at first
            self._ring = paged((self._n_readers + 1) * largest)
        self._window = BundleWindow(self._source, streamed, self._ring, self._n_readers)
        start = address(self._ring)
        self._places.update({number: self._pinned.address(number) for number in self._pinned.numbers})
        self._places.update({bundle.number: start + self._window.place(i) for i, bundle in enumerate(streamed)})

    def _leave_window(self) -> None:
        self._window.close()
        self._ring = np.zeros(0, np.uint8)

    @property
    def capabilities(self) -> LaneCapabilities:
        return replace(super().capabilities, streaming=self)

    @property
    def reading(self) -> WeightReads:
        """What passes have read so far."""
        found = self._read_before + self._window.reading
        for part in (self._mixtures, self._records):
            found = found if part is None else found + part.reading
        return found

    @property
    def record_use(self) -> RecordUse | None:
        """How records were used; None if there are none."""
        return None if self._records is None else self._records.use

    @property
    def pinned(self) -> Mapping[int, int]:
        """Bundles that stay in memory, and the bytes of each."""
        return {number: self.contents.bundles[number].padded_bytes for number in sorted(self._pinned.numbers)}

    @property
    def cache_bytes(self) -> int:
        """Memory for experts, which stay until others are used more."""
        return 0 if self._mixtures is None else self._mixtures.cache_bytes

    def resize_cache(self, n_bytes: int) -> None:
        """Resize that memory, as far as possible; between two steps."""
        if self._mixtures is not None:
            self._worker_pool.settle()
            self._mixtures.resize(n_bytes)

    def pin(self, numbers: frozenset[int]) -> None:
        """Keep exactly these of the bundles that stayed at first; between two steps.

        Raises the error of a failed read; the bundles that could not be read are streamed then.
        """
        self._window.close()
        self._read_before += self._window.reading
        before = dict(self._places)
        try:
            self._pinned.keep(numbers, no_progress)
        finally:
            self._stream()
            for call in self._every_call():
                if call.bundle is not None:
                    call.arguments["weights"] += self._places[call.bundle] - before[call.bundle]
            self._launches.clear()

    def shrink(self, n_bytes: int) -> int:
        """Give back up to `n_bytes` of room for records, for good, between two steps; returns the bytes."""
        return 0 if self._records is None else self._records.shrink(n_bytes)

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], a view that the next run overwrites. Raises EngineClosed once closed.

        Raises the error of a failed read, after which the next step starts afresh.
        """
        self._start(step)
        kind = self._kind_of(step)
        if kind not in self._launches:
            self._launches[kind] = self._cut(self._calls_of(kind))
        walk, seconds, busy = _Walk(self._window), 0.0, [0.0] * len(self.work_split.workers)
        for launch in self._ready(self._launches[kind], walk):
            self._worker_pool.run(launch.tape, self.work_split)
            timing = self._worker_pool.timing
            seconds += timing.seconds
            busy = [before + spent for before, spent in zip(busy, timing.busy, strict=True)]
        walk.leave()
        self._timing = Timing(seconds, tuple(busy))
        return self._logits(step)

    @property
    def seconds(self) -> float:
        """How long the last step took on the worker pool, without waiting for weights."""
        return self._timing.seconds

    @property
    def timing(self) -> Timing:
        """The same, and how busy workers were."""
        return self._timing

    def watch(self, step: Step, seen: Callable[[Op], None]) -> Floats:
        """Like `run`, but calls `seen` with each op as soon as its results are ready. Slow: for tests and debugging."""
        self._start(step)
        walk = _Walk(self._window)
        for op, calls in self._calls_of(replace(self._kind_of(step), alone=False)):
            for launch in self._ready(self._cut([(op, calls)]), walk):
                self._worker_pool.run(launch.tape, self.work_split)
            seen(op)
        walk.leave()
        return self._logits(step)

    def profile(self, step: Step) -> list[KernelTime]:
        """Evaluate a step and time its ops, without the wait for weights. For measurements."""
        calls = self._calls_of(self._kind_of(step))
        return op_times(calls, self._profiled(step, calls), step)

    def time_ops(self, step: Step, stages: Collection[str] | None = None) -> list[OpSeconds]:
        """Evaluate a step and time the calls of these stages, without the wait for weights. For measurements."""
        calls = self._calls_of(self._kind_of(step))
        found = call_times(calls, self._profiled(step, calls))
        names = [stage.name for stage in self._spec.stages for _ in stage.ops]
        wanted = {id(op) for name, (op, _) in zip(names, calls, strict=True) if stages is None or name in stages}
        return [each for each in found if id(each.op) in wanted]

    def _profiled(self, step: Step, calls: Sequence[tuple[Op, Sequence[Call]]]) -> CallTimes:
        self._start(step)
        launches = self._cut(calls)
        n_entries, n_workers = (
            1 + sum(len(launch.tape.entries) - 1 for launch in launches),
            len(self.work_split.workers),
        )
        waiting, busy = np.zeros((n_workers, n_entries)), np.zeros((n_workers, n_entries))
        walk = _Walk(self._window)
        places = dict(
            zip(
                map(id, launches),
                accumulate((len(launch.tape.entries) - 1 for launch in launches), initial=0),
                strict=False,
            )
        )
        for launch in self._ready(launches, walk):
            times, place = self._worker_pool.profile(launch.tape, self.work_split), places[id(launch)]
            stop = place + len(launch.tape.entries)
            waiting[:, place:stop] += times.waiting
            busy[:, place:stop] += times.busy
        walk.leave()
        return CallTimes(waiting, busy)

    def _ready(self, launches: Iterable[StreamedCalls], walk: _Walk) -> Iterator[StreamedCalls]:
        """Run each launch as soon as its weights are ready; those of experts or records once per round."""
        for launch in launches:
            walk.enter(launch.bundle)
            if launch.feed is not None:
                assert self._records is not None
                assert self._lowering.records is not None
                for _ in self._records.rounds(launch.feed, self._lowering.records):
                    yield launch
                continue
            if launch.mixture is None:
                yield launch
                continue
            assert self._mixtures is not None
            for _ in self._mixtures.rounds(launch.mixture, self._lowering.experts, self._buffers):
                yield launch

    def _cut(self, calls: Sequence[tuple[Op, Sequence[Call]]]) -> list[StreamedCalls]:
        """Launches, each of which begins where another streamed bundle, experts or records are needed."""
        runs: list[tuple[int | None, int | None, object | None, list[Call]]] = []
        for op, its_calls in calls:
            mixture, records = None, self._lowering.records
            feed = None if records is None else records.feed(its_calls)
            for call in its_calls:
                streamed = None if call.bundle in self._pinned.numbers else call.bundle
                is_new = not runs or (streamed is not None and streamed != runs[-1][0])
                if is_new or mixture != runs[-1][1] or feed is not runs[-1][2]:
                    runs.append((streamed, mixture, feed, []))
                runs[-1][3].append(call)
                if is_streamed(op) and call.kernel == catalogue.GROUP_BY_EXPERT:
                    assert self._mixtures is not None
                    assert isinstance(op, Experts)
                    mixture = self._mixtures.ops.index(op)
        return [StreamedCalls(bundle, mixture, feed, Tape(run, self._library)) for bundle, mixture, feed, run in runs]

    def close(self) -> None:
        """Leave the worker pool, stop reading and free the memory. Safe to call twice."""
        if not self._closed:
            super().close()  # workers may still run a launch that was interrupted
            self._held.close()
            self._launches.clear()


class _Walk:
    """One pass through the window."""

    def __init__(self, window: BundleWindow) -> None:
        self._window, self._current = window, -1
        window.begin()

    def enter(self, bundle: int | None) -> None:
        """Wait for a streamed bundle, the next one in order unless it is the present one; None: no bundle needed."""
        if bundle is None or bundle == self._current:
            return
        self.leave()
        self._window.wait(bundle)
        self._current = bundle

    def leave(self) -> None:
        """Release the present bundle."""
        if self._current >= 0:
            self._window.release()
            self._current = -1
