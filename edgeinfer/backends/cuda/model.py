"""What the parts of one model share on a GPU: weights, buffers, the step, one stream, the kernels of each stage.

In: the fragments that run on the GPU, one after the other, and a memory budget for all of them. Out: memory within the
budget, stages to launch. Each part has its own keys and values; buffers of the same name are the same memory in all
parts, so a part's outputs must be read before the next part begins. Independent of what enters and leaves the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgeinfer.backends import weights
from edgeinfer.backends.base import Limits
from edgeinfer.backends.cuda.caches import GpuKVMemory
from edgeinfer.backends.cuda.driver import Driver, GpuArray, Recorder
from edgeinfer.backends.cuda.footprint import footprint
from edgeinfer.backends.cuda.gemm import Gemm, LargeProducts
from edgeinfer.backends.cuda.layout import BLOCK, GpuBufferLayout
from edgeinfer.backends.cuda.lowering import CudaLowering, GpuArrays, GpuLayerCache, Rounded
from edgeinfer.backends.cuda.placing import GpuWeights, StageFeeding
from edgeinfer.backends.cuda.step import GpuStepRecord, LaunchShape
from edgeinfer.errors import DoesNotFit
from edgeinfer.graph.graph import Fragment, ModelSpec, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.graph.step import Floats, Step
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.steps import Progress


class CudaModel:
    """Fragments of one model on a GPU. `budget`: GPU bytes they may take, None for no limit. Raises DoesNotFit."""

    def __init__(
        self,
        driver: Driver,
        fragments: Sequence[Fragment],
        file: GGUFFile,
        limits: Limits,
        budget: int | None,
        progress: Progress,
        gemm: Gemm | None = None,
    ) -> None:
        spec = together(fragments)
        if len(fragments) > 1:
            limits = replace(limits, windows=None)  # each part has its own pages
        self.driver, self.limits = driver, limits
        self.layout = GpuBufferLayout(spec, file.tensors, limits)
        room = _room_for_weights(driver, spec, file, limits, budget)
        self.stream = driver.stream()
        self.recorder = Recorder(driver)
        places = np.zeros(limits.n_pages, np.int32)  # in layers with a window
        self._step, self._shape = GpuStepRecord(driver, self.layout, limits, places), LaunchShape(0, 0, 0)
        self._sent: Step | None = None
        self.caches = [GpuKVMemory(driver, fragment.spec.kv, limits, places) for fragment in fragments]
        self._memory = self._allocate(spec, file, [layer for caches in self.caches for layer in caches.layers])
        self._large = None if gemm is None else _large_products(driver, self.layout, spec, gemm)
        if room is not None and self._large is not None:
            room -= self._large.nbytes
        spare = frozenset(weight for fragment in fragments for weight in fragment.spare)
        self._weights = GpuWeights(driver, spec, file, room, progress, spare)
        self._feeding = StageFeeding(driver, self._weights)
        lowering = CudaLowering(driver, self.layout, self._memory, self._step, self._weights.place, self._large)
        self._calls = {stage.name: lowering.calls(stage) for stage in spec.stages}
        self._hosts: dict[str, Floats] = {}
        self.fewest_large = limits.max_tokens + 1 if gemm is None else gemm.fewest
        """Tokens of the smallest pass that uses cuBLAS."""
        self._n_open = len(fragments)

    def _allocate(self, spec: ModelSpec, file: GGUFFile, caches: list[GpuLayerCache]) -> GpuArrays:
        """All arrays except weights, caches and the step."""
        driver, layout, step = self.driver, self.layout, self._step
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
            tables = rope.rotations(table, self.limits.n_context, weights.rope_factors(file, table))
            cosines, sines = (driver.zeros(found.size, np.float32) for found in tables)
            for array, found in zip((cosines, sines), tables, strict=True):
                array.copy_to_device(np.ascontiguousarray(found).reshape(-1))
            rotations[table] = cosines, sines
        partials = driver.zeros(layout.partial_floats, np.float32)
        places, window_places = (driver.zeros(5, np.int32) for _ in range(2))
        starts = [step.positions_at, step.rows_at, step.starts_at]
        places.copy_to_device(np.array([*starts, step.paths_at, step.tables_at], np.int32))
        window_places.copy_to_device(np.array([*starts, step.window_paths_at, step.window_tables_at], np.int32))
        return GpuArrays(buffers, rounded, caches, rotations, partials, places, window_places)

    @property
    def shared_bytes(self) -> int:
        """Bytes of GPU memory, without keys and values."""
        memory = self._memory
        arrays = [*memory.buffers.values(), *(array for pair in memory.rotations.values() for array in pair)]
        for rounded in memory.rounded.values():
            arrays += [rounded.codes, rounded.scales, rounded.sums]
        held = sum(array.nbytes for array in arrays) + 4 * self.layout.partial_floats + self._step.nbytes
        return held + self._weights.resident_bytes + (0 if self._large is None else self._large.nbytes)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of weights streamed in each step."""
        return self._weights.streamed_bytes

    def is_streamed(self, stage: str) -> bool:
        """Whether weights of a stage are streamed."""
        return stage in self._weights.sent

    def host(self, name: str) -> Floats:
        """Pinned host rows of a buffer, allocated on first use."""
        if name not in self._hosts:
            self._hosts[name] = self.driver.pinned(self.layout.shape(name), np.float32).view(np.float32)
        return self._hosts[name]

    def rows(self, name: str, n_rows: int) -> GpuArray:
        """The first rows of a buffer, flat."""
        return self._memory.buffers[name][: n_rows * self.layout.shape(name)[1]]

    def send(self, step: Step) -> LaunchShape:
        """Take over a step, unless it is the one sent last."""
        if step is not self._sent:
            self._shape = self._step.fill(step, self.stream)
            self._sent = step
        return self._shape

    def start(self, stages: Sequence[str], shape: LaunchShape) -> None:
        """Launch the kernels of these stages, and send weights for the following ones."""
        self._feeding.run(stages, lambda name: self._start_stage(name, shape), self.stream)

    def _start_stage(self, name: str, shape: LaunchShape) -> None:
        self.driver.launch([call(shape) for call in self._calls[name]], self.stream)

    def leave(self) -> None:
        """Close one part; after the last one the memory is freed."""
        self._n_open -= 1
        if self._n_open == 0:
            self._calls.clear()
            self._weights.close()
            del self._memory, self._feeding, self._step, self._hosts, self._large


def together(fragments: Sequence[Fragment]) -> ModelSpec:
    """One spec of all fragments: their stages in turn, with numbered names, and their KV layers one after the other."""
    stages: list[Stage] = []
    first = 0
    for number, fragment in enumerate(fragments):
        stages += [
            Stage(stage_name(number, stage.name), tuple(_moved(op, first) for op in stage.ops))
            for stage in fragment.spec.stages
        ]
        first += len(fragment.spec.kv)
    buffers = {buffer.name: buffer for fragment in fragments for buffer in fragment.spec.buffers}
    layers = tuple(layer for fragment in fragments for layer in fragment.spec.kv)
    return replace(fragments[0].spec, stages=tuple(stages), buffers=tuple(buffers.values()), kv=layers)


def stage_name(number: int, name: str) -> str:
    """The name of a fragment's stage among those of all fragments."""
    return f"{number}.{name}"


def _moved(op: Op, first: int) -> Op:
    return replace(op, layer=op.layer + first) if isinstance(op, StoreKV | Attention) else op


def _large_products(driver: Driver, layout: GpuBufferLayout, spec: ModelSpec, gemm: Gemm) -> LargeProducts | None:
    """Scratch memory for large products, if a pass can be large."""
    widths = [(op.weight.n_rows, op.weight.columns) for op in spec.ops() if isinstance(op, MatMul)]
    if not widths or layout.most_tokens < gemm.fewest:
        return None
    return LargeProducts(driver, layout, widths, gemm)


def _room_for_weights(
    driver: Driver, spec: ModelSpec, file: GGUFFile, limits: Limits, budget: int | None
) -> int | None:
    """Bytes left for weights. Raises DoesNotFit if even pages and buffers do not fit."""
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
