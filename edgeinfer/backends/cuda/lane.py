"""A model, or part of one, on the GPU: placed weights, buffers, KV pages, and steps that run without the host.

In: steps and the rows of input buffers. Out: the rows of output buffers. One copy sends the step, one for each
input and output moves rows; in between only kernels run, from a recorded graph where small passes repeat.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import Floats, Int32s, Limits, Progress, Step
from edgeinfer.backends.cuda.caches import Caches
from edgeinfer.backends.cuda.driver import FAILURES, Driver, GpuArray
from edgeinfer.backends.cuda.footprint import footprint
from edgeinfer.backends.cuda.gemm import Gemm, LargeProducts
from edgeinfer.backends.cuda.graphs import RECORDING_FAILURES, Graph, Recorder
from edgeinfer.backends.cuda.layout import BLOCK, BufferLayout
from edgeinfer.backends.cuda.lowering import Lowering, Memory, Rounded
from edgeinfer.backends.cuda.placing import Feeding, Weights
from edgeinfer.backends.cuda.step import Shape, StepRecord
from edgeinfer.errors import DeviceFailed, DoesNotFit, EngineClosed
from edgeinfer.models import rope
from edgeinfer.models.fragment import Fragment, whole
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.spec import ModelSpec
from edgeinfer.ops import MatMul, Rope, RopeTable

MOST_RECORDED = 64
"""Tokens of passes that are recorded as graphs."""
MOST_GRAPHS = 32


class CudaFragmentLane:
    """A compiled fragment. `budget`: bytes of GPU memory it may take, None for no limit."""

    def __init__(
        self,
        driver: Driver,
        fragment: Fragment,
        file: GGUFFile,
        limits: Limits,
        budget: int | None,
        progress: Progress,
        gemm: Gemm | None = None,
    ) -> None:
        spec = fragment.spec
        self._driver, self._fragment, self._limits = driver, fragment, limits
        self._layout = BufferLayout(spec, file.tensors, limits)
        room = _room_for_weights(driver, spec, file, limits, budget)
        self._stream = driver.stream()
        self._marks = driver.event(), driver.event()
        self._step = StepRecord(driver, self._layout, limits)
        self._caches = Caches(driver, spec.kv, limits)
        self._memory = self._allocate(spec, file)
        self._large = None if gemm is None else _large_products(driver, self._layout, spec, gemm)
        if room is not None and self._large is not None:
            room -= self._large.nbytes
        self._weights = Weights(driver, spec, file, room, progress)
        self._feeding = Feeding(driver, self._weights)
        lowering = Lowering(driver, self._layout, self._memory, self._step, self._weights.place, self._large)
        self._calls = {stage.name: lowering.calls(stage) for stage in spec.stages}
        self._hosts = {name: self._host(name) for name in {*fragment.inputs, *fragment.outputs}}
        self._recorder = Recorder(driver)
        self._graphs: dict[Shape, Graph | None] = {}
        # cuBLAS may allocate memory, which a recording forbids.
        self._fewest_unrecorded = min(MOST_RECORDED + 1, limits.max_tokens + 1 if gemm is None else gemm.fewest)
        self._shape: Shape | None = None
        self._began, self._seconds = 0.0, 0.0
        self._closed = False

    def _allocate(self, spec: ModelSpec, file: GGUFFile) -> Memory:
        """All arrays but weights, caches and the step."""
        driver, layout, step = self._driver, self._layout, self._step
        buffers: dict[str, GpuArray] = {}
        rounded: dict[str, Rounded] = {}
        for buffer in spec.buffers:
            n_rows, width = layout.shape(buffer.name)
            buffers[buffer.name] = driver.zeros(n_rows * width, np.float32)
            if buffer.name in layout.rounded:
                blocks = n_rows * width // BLOCK
                arrays = ((8 * blocks, np.uint32), (blocks, np.float32), (2 * blocks, np.int32))
                rounded[buffer.name] = Rounded(*(driver.zeros(count, dtype) for count, dtype in arrays))
        rotations: dict[RopeTable, tuple[GpuArray, GpuArray]] = {}
        for table in dict.fromkeys(op.table for op in spec.ops() if isinstance(op, Rope)):
            tables = rope.rotations(table, self._limits.n_context, weights.rope_factors(file, table))
            cosines, sines = (driver.zeros(found.size, np.float32) for found in tables)
            for array, found in zip((cosines, sines), tables, strict=True):
                array.copy_to_device(np.ascontiguousarray(found).reshape(-1))
            rotations[table] = cosines, sines
        partials = driver.zeros(layout.partial_floats, np.float32)
        places = driver.zeros(5, np.int32)
        starts = [step.positions_at, step.rows_at, step.starts_at, step.paths_at, step.tables_at]
        places.copy_to_device(np.array(starts, np.int32))
        return Memory(buffers, rounded, self._caches.layers, rotations, partials, places)

    def _host(self, name: str) -> Floats:
        """Pinned rows of a buffer."""
        found: Floats = self._driver.pinned(self._layout.shape(name), np.float32).view(np.float32)
        return found

    @property
    def resident_bytes(self) -> int:
        """Bytes of GPU memory: fewer than the footprint where weights are streamed."""
        if self._closed:
            return 0
        memory = self._memory
        arrays = [*memory.buffers.values(), *(array for pair in memory.rotations.values() for array in pair)]
        for rounded in memory.rounded.values():
            arrays += [rounded.codes, rounded.scales, rounded.sums]
        partials = 4 * self._layout.partial_floats
        held = sum(array.nbytes for array in arrays) + partials + self._step.nbytes
        held += 0 if self._large is None else self._large.nbytes
        return held + self._weights.resident_bytes + self._caches.nbytes

    @property
    def streams(self) -> bool:
        """Whether weights are sent for each step."""
        return bool(self._weights.streamed)

    @property
    def records(self) -> bool:
        """Whether small passes run from recorded graphs."""
        return self._recorder.works and not self.streams

    def submit(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Start a step. Raises EngineClosed, DeviceFailed."""
        if self._closed:
            raise EngineClosed("the model is closed; load it again")
        try:
            self._driver.enter()
            self._stream.synchronize()
            self._start(step, inputs)
        except RECORDING_FAILURES as error:
            raise DeviceFailed(f"{self._driver.name} failed: {error}") from error

    def _start(self, step: Step, inputs: Mapping[str, Floats]) -> None:
        """Send a step and its inputs, start its kernels and ask for its outputs."""
        self._began = time.perf_counter()
        self._marks[0].record(self._stream)
        shape = self._step.fill(step, self._stream)
        for name in self._fragment.inputs:
            rows = inputs[name]
            host = self._hosts[name]
            host[: len(rows), : rows.shape[1]] = rows
            self._part(name, len(rows)).copy_to_device(host[: len(rows)].reshape(-1), stream=self._stream)
        self._run(shape)
        for name in self._fragment.outputs:
            count = self._n_rows(name, shape)
            if count:
                self._part(name, count).copy_to_host(self._hosts[name][:count].reshape(-1), stream=self._stream)
        self._marks[1].record(self._stream)
        self._shape = shape

    def _run(self, shape: Shape) -> None:
        """Start the kernels of a pass, from a graph once it has run without."""
        is_recorded = self.records and shape.tokens < self._fewest_unrecorded
        graph = self._graphs.get(shape) if is_recorded else None
        if graph is not None:
            graph.launch(self._stream)
            return
        self._start_stages(shape)
        if is_recorded and shape not in self._graphs:
            self._stream.synchronize()
            if len(self._graphs) >= MOST_GRAPHS:
                self._drop_graphs()
            self._graphs[shape] = self._recorder.record(lambda: self._start_stages(shape), self._stream)

    def _start_stages(self, shape: Shape) -> None:
        names = [stage.name for stage in self._fragment.spec.stages]
        self._feeding.run(names, lambda name: self._start_stage(name, shape), self._stream)

    def _start_stage(self, name: str, shape: Shape) -> None:
        self._driver.launch([call(shape) for call in self._calls[name]], self._stream)

    def _part(self, name: str, n_rows: int) -> GpuArray:
        """The first rows of a buffer."""
        return self._memory.buffers[name][: n_rows * self._layout.shape(name)[1]]

    def _n_rows(self, name: str, shape: Shape) -> int:
        return shape.tokens if self._layout.is_tokens(name) else shape.outputs

    def wait(self) -> Mapping[str, Floats]:
        """The output buffers of the last step. Raises DeviceFailed."""
        if self._shape is None:
            raise ValueError("no step was submitted")
        try:
            self._driver.enter()
            self._stream.synchronize()
            timed = self._marks[0].elapsed_time(self._marks[1])
        except FAILURES as error:
            raise DeviceFailed(f"{self._driver.name} failed: {error}") from error
        self._seconds = timed / 1e3 if timed >= 0 else time.perf_counter() - self._began
        found: dict[str, Floats] = {}
        for name in self._fragment.outputs:
            rows = self._hosts[name][: self._n_rows(name, self._shape), : self._layout.width(name)]
            found[name] = rows
        return found

    @property
    def ran(self) -> tuple[float, float]:
        """When the last step was given to the GPU, and then plus what it took there, by time.perf_counter."""
        return self._began, self._began + self._seconds

    def copy_slots(self, sources: Int32s, targets: Int32s) -> None:
        """Copy keys and values of slots, in order, in all layers."""
        self._caches.copy_slots(sources, targets, self._stream)

    def read_pages(self, pages: Int32s) -> NDArray[np.uint8]:
        """Contents of pages: uint8[len(pages), page_bytes]."""
        self._stream.synchronize()
        return self._caches.read_pages(pages)

    def write_pages(self, pages: Int32s, contents: NDArray[np.uint8]) -> None:
        """Put back contents of pages."""
        self._stream.synchronize()
        self._caches.write_pages(pages, contents)

    def _drop_graphs(self) -> None:
        for graph in self._graphs.values():
            if graph is not None:
                graph.close()
        self._graphs.clear()

    def close(self) -> None:
        """Give the memory back. Safe to call twice."""
        if self._closed:
            return
        self._stream.synchronize()
        self._closed = True
        self._drop_graphs()
        self._calls.clear()
        self._weights.close()
        self._caches.close()
        del self._memory, self._feeding, self._step, self._hosts, self._large


class CudaLane:
    """A whole model: a fragment that nothing enters and whose logits leave."""

    def __init__(
        self,
        driver: Driver,
        spec: ModelSpec,
        file: GGUFFile,
        limits: Limits,
        budget: int | None,
        progress: Progress,
        gemm: Gemm | None = None,
    ) -> None:
        self.part = CudaFragmentLane(driver, whole(spec), file, limits, budget, progress, gemm)
        self._logits = spec.logits
        self.copy_slots, self.read_pages = self.part.copy_slots, self.part.read_pages
        self.write_pages, self.close = self.part.write_pages, self.part.close

    @property
    def resident_bytes(self) -> int:
        return self.part.resident_bytes

    def run(self, step: Step) -> Floats:
        """Evaluate one step: float32[O, V], a view that the next run overwrites."""
        self.part.submit(step, {})
        return self.part.wait()[self._logits]


def _large_products(driver: Driver, layout: BufferLayout, spec: ModelSpec, gemm: Gemm) -> LargeProducts | None:
    """Scratch memory for large products, where a pass can be large."""
    widths = [(op.weight.n_rows, op.weight.columns) for op in spec.ops() if isinstance(op, MatMul)]
    if not widths or layout.most_tokens < gemm.fewest:
        return None
    return LargeProducts(driver, layout, widths, gemm)


def _room_for_weights(
    driver: Driver, spec: ModelSpec, file: GGUFFile, limits: Limits, budget: int | None
) -> int | None:
    """Bytes left for weights. Raises DoesNotFit where not even pages and buffers have room."""
    if budget is None:
        return None
    needed = footprint(spec, file.tensors, limits)
    room = budget - needed.kv_bytes - needed.buffer_bytes
    if room <= 0:
        raise DoesNotFit(
            f"{driver.name} has {budget} bytes for this model; {limits.n_context} tokens of context and buffers take "
            f"{needed.kv_bytes + needed.buffer_bytes}: use a smaller context"
        )
    return room
