"""A whole model on the CPU: packed weights, KV pages, buffers, one tape, a worker pool.

In: steps. Out: logits. Embedding rows are read straight from the file (only the rows of the step are touched);
everything after them runs on the tape without Python.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits, OpSeconds, Timing, WorkSplit
from edgeinfer.backends.capabilities import KernelTime, LaneCapabilities, Overhead
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.lanes.summarising import PageSummarising
from edgeinfer.backends.cpu.layout.padding import heads_of, tile_tokens
from edgeinfer.backends.cpu.layout.pages import slot_copying
from edgeinfer.backends.cpu.lowering.fusion import Sections
from edgeinfer.backends.cpu.lowering.model import CpuLowering
from edgeinfer.backends.cpu.memory.inputs import PassInputs, embedding_of
from edgeinfer.backends.cpu.memory.packing import PackedWeights, PanelWeights
from edgeinfer.backends.cpu.memory.sequences import CpuKV, CpuWindows
from edgeinfer.backends.cpu.memory.step import StepRecord
from edgeinfer.backends.cpu.memory.turning import CpuKeyTurner
from edgeinfer.backends.cpu.workers.prefetch import choose_ahead, may_prefetch, prefetches_like
from edgeinfer.backends.cpu.workers.tape import Call, Tape
from edgeinfer.backends.cpu.workers.timing import call_times, op_times, overhead
from edgeinfer.backends.cpu.workers.worker_pool import WorkerPool
from edgeinfer.backends.memories import KeyTurner
from edgeinfer.errors import EngineClosed
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.step import Floats, Int32s, Step
from edgeinfer.jit.library import KernelLibrary
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress

MOST_TAPES = 32
"""Most tapes for sets of LoRA adapters in use."""


@dataclass(frozen=True, slots=True)
class PassKind:
    """Which tape runs a pass. `alone`: it has one token; `within`: it states budgets of attention.

    `deep`: parts of its rows, if it has any, are added after later layers.
    """

    alone: bool
    within: bool = False
    deep: bool = False


@dataclass(frozen=True, slots=True)
class LaneResources:
    """What a device gives to each of its lanes. `n_nodes`: NUMA nodes that the worker pool's cores belong to.

    `beside`: the lane that was compiled before, whose packed weights serve other models in the same file. `kv`: pools
    of another lane to read; None for pools of its own.
    """

    worker_pool: WorkerPool
    library: KernelLibrary
    isa_name: str
    n_nodes: int = 1
    beside: CpuLane | None = None
    kv: CpuKV | None = None


class CpuLane:
    """A compiled model. `work_split` may change between steps; the output bits do not depend on it."""

    def __init__(
        self,
        spec: ModelSpec,
        file: GGUFFile,
        limits: Limits,
        resources: LaneResources,
        progress: Progress,
        sections: Sections | None = None,
    ) -> None:
        """`sections`: None for one section of all ops."""
        worker_pool, library = resources.worker_pool, resources.library
        self.work_split = WorkSplit.even(worker_pool.n_workers)
        self._spec, self._file, self._limits, self._worker_pool = spec, file, limits, worker_pool
        self._library = library
        self._closed, self._adapters = False, frozenset(range(len(spec.scales)))
        embedding_of(spec)  # refuses models that this device cannot have
        packed = self._weights(resources, progress)
        self._kv = resources.kv or CpuKV(spec.kv, limits, huge=resources.n_nodes == 1)
        self._kv_places = slot_copying(self._kv.pools)
        self._copy_slots = library.function(catalogue.copy_slots(limits.kv))
        chooses = any(isinstance(op, Attention) and op.block_budget is not None for op in spec.ops())
        ends, spans = not spec.is_causal, spec.inputs.spans
        own = limits, tile_tokens(spec)
        self._step = StepRecord(*own, ends=ends, spans=spans, scales=spec.scales, chooses=chooses)
        self._lowering = CpuLowering(spec, file, limits, packed, self._kv, self._step, worker_pool.n_workers, sections)
        self._packed, self._buffers = packed, self._lowering.buffers
        self._inputs = PassInputs(spec, file, limits, self._buffers.arrays)
        self._every_logits = self._buffers.arrays[spec.logits][:, : spec.output_width]
        self._one_logits = self._every_logits[:1]
        self._calls = {PassKind(alone): self._lowering.calls(alone) for alone in (False, True)}
        self._tapes = {
            kind: Tape([call for _, calls in found for call in calls], library, progress)
            for kind, found in self._calls.items()
        }
        self._summaries = PageSummarising(self._kv, limits, library) if limits.budgets else None
        self.states = self._lowering.states if spec.states else None
        advances = self._lowering.advances()
        self._advance_tape = Tape(advances, library) if advances else None
        self._lowering.states.run = self._advance
        self._turner: KeyTurner | None = None
        if resources.kv is None:
            self._turner = CpuKeyTurner.of(spec, file, self._kv, library, self._launch)
        self._step.record["n_tokens"] = self._step.record["n_outputs"] = 1
        self.reads_ahead = choose_ahead(list(self._every_call()), worker_pool, library)
        self._fewer: dict[tuple[PassKind, frozenset[int]], Tape] = {}
        file.release()

    def _weights(self, resources: LaneResources, progress: Progress) -> PanelWeights:
        """The model's matrices, packed."""
        packed = PackedWeights(self._file, resources.isa_name, self._library)
        heads, worker_pool = heads_of(self._spec), self._worker_pool
        wanted = [(op.weight, heads.get(op.out)) for op in self._spec.ops() if isinstance(op, MatMul)]
        wanted += [(weight, None) for op in self._spec.ops() if isinstance(op, Experts) for weight in op.matrices]
        if self._limits.prepacked is not None:
            from edgeinfer.backends.cpu.bundles.contents import contents_of
            from edgeinfer.backends.cpu.bundles.filling import start_from

            contents = contents_of(self._spec, self._file.tensors)
            start_from(
                packed, self._limits.prepacked, contents, wanted, worker_pool.n_workers, progress, worker_pool.cores
            )
        beside = None if resources.beside is None or resources.beside._closed else resources.beside._packed
        if isinstance(beside, PackedWeights) and beside.file is self._file:
            packed.share(beside, wanted)
        packed.pack(wanted, worker_pool.n_workers, progress, worker_pool.cores)
        return packed

    @property
    def capabilities(self) -> LaneCapabilities:
        memories = self.states, self.windows
        return LaneCapabilities(
            *memories,
            workers=self,
            op_times=self,
            peaks=self,
            buffers=self,
            cutting=self,
            scales=True,
            budgets=self._summaries is not None,
            turning=self._turner,
            scratch=self if self._spec.scratch else None,
        )

    @property
    def resident_bytes(self) -> int:
        kept = self._inputs.nbytes + self._kv.nbytes
        return self._packed.resident_bytes + self._lowering.resident_bytes + kept

    @property
    def n_workers(self) -> int:
        return self._worker_pool.n_workers

    @property
    def affinity(self) -> tuple[tuple[int, ...], ...]:
        """The cores that each worker may run on."""
        return self._worker_pool.affinity

    @property
    def worker_pool_size(self) -> int:
        """Number of workers that take part; setting it makes their shares equal."""
        return len(self.work_split.workers)

    @worker_pool_size.setter
    def worker_pool_size(self, size: int) -> None:
        self.work_split = WorkSplit.even(size)

    @property
    def seconds(self) -> float:
        """How long the last step took on the worker pool."""
        return self._worker_pool.seconds

    @property
    def timing(self) -> Timing:
        """How long the last step took on the worker pool, and how busy workers were."""
        return self._worker_pool.timing

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], a view that the next run overwrites. Raises EngineClosed once closed."""
        self._start(step)
        self._worker_pool.run(self._tape_of(step), self.work_split)
        return self._logits(step)

    def _every_call(self) -> Iterator[Call]:
        for found in self._calls.values():
            for _, calls in found:
                yield from calls

    def _tape_of(self, step: Step) -> Tape:
        """The tape of the step just begun, without LoRA adapters that no row uses, unless there were too many sets."""
        kind, unused = self._kind_of(step), self._adapters - self._step.adapters.used
        if not unused:
            return self._whole_tape(kind)
        if (kind, unused) not in self._fewer:
            if len(self._fewer) >= MOST_TAPES:
                return self._whole_tape(kind)
            found = self._made(kind, unused)
            self._fewer[kind, unused] = Tape([call for _, calls in found for call in calls], self._library)
        return self._fewer[kind, unused]

    def _kind_of(self, step: Step) -> PassKind:
        """The kind of a step."""
        batch = step.batch
        return PassKind(len(batch.tokens) == 1, batch.budgets is not None, self._lowering.adds_rows(batch))

    def _whole_tape(self, kind: PassKind) -> Tape:
        """The tape with all ops."""
        if kind not in self._tapes:
            self._tapes[kind] = Tape([call for _, calls in self._calls_of(kind) for call in calls], self._library)
        return self._tapes[kind]

    def _calls_of(self, kind: PassKind) -> list[tuple[Op, list[Call]]]:
        """The calls of each op; those of passes with budgets are made when the first one comes."""
        if kind not in self._calls:
            self._calls[kind] = self._made(kind)
        return self._calls[kind]

    def _made(self, kind: PassKind, unused: frozenset[int] = frozenset()) -> list[tuple[Op, list[Call]]]:
        """Calls without these LoRA adapters, which prefetch as those do that were made with the lane."""
        before = [call for _, calls in self._calls[PassKind(kind.alone)] for call in calls]
        ahead = {prefetches_like(call): call.arguments["ahead"] for call in before if may_prefetch(call)}
        found = self._lowering.calls(kind.alone, unused, within=kind.within, deep=kind.deep)
        for call in filter(may_prefetch, (call for _, calls in found for call in calls)):
            call.arguments["ahead"] = ahead.get(prefetches_like(call), 0)
        return found

    def watch(self, step: Step, seen: Callable[[Op], None]) -> Floats:
        """Like `run`, but calls `seen` with each op as soon as its results are ready. Slow: for tests and debugging."""
        self._start(step)
        for op, calls in self._calls_of(replace(self._kind_of(step), alone=False)):
            self._worker_pool.run(Tape(calls, self._library), self.work_split)
            seen(op)
        return self._logits(step)

    def profile(self, step: Step) -> list[KernelTime]:
        """Evaluate a step and time its ops. Slower than `run`: for measurements."""
        self._start(step)
        kind = self._kind_of(step)
        calls, tape = self._calls_of(kind), self._whole_tape(kind)
        return op_times(calls, self._worker_pool.profile(tape, self.work_split), step)

    def time_ops(self, step: Step, stages: Collection[str] | None = None) -> list[OpSeconds]:
        """Evaluate a step, or only these stages on the present buffers, and time its calls. For measurements."""
        self._start(step)
        kind = self._kind_of(step)
        calls, tape = self._calls_of(kind), self._whole_tape(kind)
        if stages is not None:
            spec = self._spec if kind.deep else self._spec.without_deep_rows()
            names = (stage.name for stage in spec.stages for _ in stage.ops)
            calls = [found for name, found in zip(names, calls, strict=True) if name in stages]
            tape = Tape([call for _, its_calls in calls for call in its_calls], self._library)
        return call_times(calls, self._worker_pool.profile(tape, self.work_split))

    def overhead(self) -> Overhead:
        """The cost of a launch, a call and a barrier that compute nothing."""
        return overhead(self._worker_pool, self._library, self.work_split)

    def value(self, name: str) -> Floats:
        """The present values of a buffer: float32[T or O, width]."""
        return self._buffers.value(name)

    def rounded(self, name: str) -> Floats:
        """The values that the int8 form of a buffer represents, as products read it: float32[T or O, width]."""
        return self._buffers.rounded(name)

    def hidden(self, op: Experts) -> Floats:
        """The values that the int8 hidden rows of experts represent, if `op` is the last of its kind that ran."""
        return self._lowering.hidden(op)

    def _start(self, step: Step) -> None:
        """Load a step into the step record and write the embedding rows of its tokens."""
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        self._worker_pool.settle()
        self._step.fill(step)
        if step.new_pages is not None:
            self._summarise(step.new_pages)
        if self.states is not None:
            self.states.fill(step)
        self._lowering.thresholds.begin()
        batch, rotations = step.batch, self._lowering.rotations
        if batch.axes is None:
            rotations.reach(1 + int(batch.positions.max()))
            self._step.turn(None)
        else:
            self._step.turn(rotations.rows_of(batch.axes))
        self._inputs.write(batch, deep=self._kind_of(step).deep)

    def _summarise(self, pages: Int32s) -> None:
        """Summarise pages."""
        if self._summaries is not None:
            self._summaries.run(pages, self._worker_pool, self.work_split)

    def _advance(self) -> None:
        """Advance a state as `states.record` says."""
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        assert self._advance_tape is not None
        self._worker_pool.settle()
        self._worker_pool.run(self._advance_tape, self.work_split)

    def _launch(self, tape: Tape) -> None:
        """Run a tape between two steps."""
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        self._worker_pool.settle()
        self._worker_pool.run(tape, self.work_split)

    @property
    def activations(self) -> tuple[int, int]:
        """Activations that a threshold applied to in all passes so far, and how many of them were kept."""
        return (0, 0) if self._closed else self._lowering.thresholds.activations

    @property
    def peaks(self) -> Floats:
        """The highest of each `base.PEAK_LOGITS` logits of the last step, a view that the next run overwrites."""
        return self._lowering.peaks[: self._step.n_outputs]

    def _logits(self, step: Step) -> Floats:
        if len(step.batch.outputs) == 1:
            return self._one_logits
        return self._every_logits[: len(step.batch.outputs)]

    @property
    def windows(self) -> CpuWindows | None:
        """Layers that keep only a window."""
        return self._kv.windows

    def lent_kv(self) -> CpuKV:
        """Its pools, for another lane to read."""
        return self._kv.lent()

    def give_back(self) -> None:
        """As `capabilities.Scratch`."""
        self._buffers.give_back()
        self._kv.give_back()

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values from slots to slots in all layers."""
        sources, targets = np.ascontiguousarray(sources, np.int32), np.ascontiguousarray(targets, np.int32)
        layers = self._kv_places
        self._copy_slots(layers.ctypes.data, len(layers), sources.ctypes.data, targets.ctypes.data, len(sources))

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages of the layers without a window: uint8[len(pages), page_bytes]."""
        return self._kv.read(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Restore contents of pages."""
        self._kv.write(pages, contents)

    def close(self) -> None:
        """Leave the worker pool and free the memory. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._worker_pool.close()
        self._kv.close()
        self._calls.clear()
        self._tapes.clear()
        self._fewer.clear()
        self._buffers.arrays.clear()
        self.states = self._lowering.states.run = self._turner = None
        del self._lowering, self._packed, self._advance_tape, self._summaries
        del self._inputs, self._one_logits, self._every_logits
