"""From ops to launches: which kernel runs on which arrays, with which grid, for a pass of a given shape.

In: a ModelSpec, the buffers, placed weights and caches. Out: a list of `Call`s per stage, functions of a `LaunchShape`.
Launches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgeinfer.backends.cuda.driver import Driver, GpuArray, GpuKernel, GpuLaunch, Series, Startable
from edgeinfer.backends.cuda.gemm import LargeProducts
from edgeinfer.backends.cuda.layout import BLOCK, FloatForm, GpuBufferLayout, IntegerForm, KVForm, over, padded
from edgeinfer.backends.cuda.ops import DEVICE_OPS, Call
from edgeinfer.backends.cuda.placing import Placed
from edgeinfer.backends.cuda.step import GpuStepRecord, LaunchShape
from edgeinfer.graph.graph import Stage
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.rotary import RopeTable


@dataclass(frozen=True, slots=True)
class Rounded:
    """The int8 form of a buffer: uint32 codes, float32 scales, int32 sums, as `kernels.rounding` writes them."""

    codes: GpuArray
    scales: GpuArray
    sums: GpuArray


@dataclass(frozen=True, slots=True)
class GpuLayerCache:
    """Keys and values of a layer: words and float16 scales of each (f16: no scales, the words take their place).

    `is_limited`: whether the layer has a window.
    """

    key_form: KVForm
    value_form: KVForm
    keys: GpuArray
    key_scales: GpuArray
    values: GpuArray
    value_scales: GpuArray
    is_limited: bool


@dataclass(frozen=True, slots=True)
class GpuArrays:
    """All arrays used by launches, except weights."""

    buffers: dict[str, GpuArray]
    rounded: dict[str, Rounded]
    caches: list[GpuLayerCache]
    rotations: dict[RopeTable, tuple[GpuArray, GpuArray]]
    partials: GpuArray
    places: GpuArray
    window_places: GpuArray


class CudaLowering:
    """Turns the stages of one model into calls."""

    def __init__(
        self,
        driver: Driver,
        layout: GpuBufferLayout,
        memory: GpuArrays,
        step: GpuStepRecord,
        place: Callable[[Weight], Placed],
        large: LargeProducts | None = None,
    ) -> None:
        self.kernels, self.sizes = driver.kernels, driver.sizes
        self.layout, self.memory, self.step, self.place = layout, memory, step, place
        self.large = large
        self._fresh: set[str] = set()
        self.flat = (driver.sizes.threads, 1)

    def over(self, count: int) -> int:
        """Number of blocks for `count` independent threads."""
        return over(count, self.flat[0])

    def calls(self, stage: Stage) -> list[Call]:
        """The launches of a stage. Raises UnsupportedModel for an unsupported op."""
        found: list[Call] = []
        self._fresh.clear()
        for op in stage.ops:
            found += DEVICE_OPS.of(op).calls(self, op)
        return found

    def written(self, name: str) -> None:
        """Mark the int8 form of a buffer as out of date."""
        self._fresh.discard(name)

    def is_large(self, n_rows: int) -> bool:
        """Whether products of this many rows use cuBLAS."""
        return self.large is not None and n_rows >= self.large.fewest

    def stride(self, name: str) -> int:
        """Distance between the rows of a buffer, in numbers."""
        return self.layout.shape(name)[1]

    def rows(self, name: str) -> Callable[[LaunchShape], int]:
        """Number of rows of a buffer in a pass."""
        is_tokens = self.layout.is_tokens(name)
        return lambda shape: shape.tokens if is_tokens else shape.outputs

    def round(self, name: str) -> list[Call]:
        """Compute the int8 form of a buffer, unless it is up to date."""
        if name in self._fresh:
            return []
        self._fresh.add(name)
        kernel, rounded, rows = self.kernels.get("rounding", "rounding"), self.memory.rounded[name], self.rows(name)
        per_row = self.stride(name) // BLOCK
        arrays = (self.memory.buffers[name], rounded.codes, rounded.scales, rounded.sums)

        def call(shape: LaunchShape) -> Startable:
            if self.is_large(rows(shape)):
                return Series([])
            count = rows(shape) * per_row
            return GpuLaunch(kernel, (self.over(count), 1, 1), self.flat, (*arrays, count))

        return [call]

    def pointwise(self, name: str, width: int, kernel: GpuKernel, arguments: tuple[object, ...]) -> Call:
        """The launch of a kernel that writes a buffer number by number."""
        self.written(name)
        rows, blocks = self.rows(name), self.over(width)
        return lambda shape: GpuLaunch(kernel, (blocks, rows(shape), 1), self.flat, arguments)


def look_up(lowering: CudaLowering, weight: Weight, name: str, scale: float, rows_at: int, *, adds: bool) -> list[Call]:
    """Copy rows of a matrix to a buffer, or add them to it; their numbers are in the step from `rows_at` on."""
    lowering.written(name)
    placed, out, stride = lowering.place(weight), lowering.memory.buffers[name], lowering.stride(name)
    form, factor = placed.form, np.float32(scale)
    at = (lowering.step.array, rows_at, out)
    arguments: tuple[object, ...]
    if isinstance(form, IntegerForm):
        kernel = lowering.kernels.get("embedding", "integer_rows", *form.constants)
        count = weight.columns // BLOCK
        arguments = (*placed.integer_arrays(), *at, count, stride, factor, int(adds))
    else:
        assert isinstance(form, FloatForm)
        kernel = lowering.kernels.get("embedding", "float_rows", form.kind)
        count = padded(weight.columns) // 8
        arguments = (placed.region("codes"), *at, count, stride, factor, int(adds))
    return [lambda shape: GpuLaunch(kernel, (lowering.over(count), shape.tokens, 1), lowering.flat, arguments)]
