"""From ops to launches: which kernel runs on which arrays, with which grid, for a pass of a given shape.

In: a ModelSpec, the buffers, placed weights and caches. Out: for each stage a list of `Call`s, functions of a `Shape`.
Nothing is started here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgeinfer.backends.cuda.driver import Driver, GpuArray, Launch, Series, Startable
from edgeinfer.backends.cuda.gemm import LargeProducts
from edgeinfer.backends.cuda.layout import (
    BLOCK,
    SPLIT_TOKENS,
    BufferLayout,
    FloatForm,
    IntegerForm,
    KVForm,
    padded,
)
from edgeinfer.backends.cuda.placing import Placed
from edgeinfer.backends.cuda.step import Shape, StepRecord
from edgeinfer.errors import UnsupportedModel
from edgeinfer.models.spec import Stage
from edgeinfer.ops import (
    Act,
    Add,
    Attention,
    Embed,
    GatedAct,
    LayerNorm,
    MatMul,
    Op,
    PositionEmbed,
    RMSNorm,
    Rope,
    RopeTable,
    SoftCap,
    StoreKV,
    TakeOutputs,
    Weight,
)

Call: TypeAlias = Callable[[Shape], Startable]
ROW_WARPS = 4
"""Rows that a block of a product takes, a warp each."""
MOST_TILE = 8
"""Tokens that a warp of a product keeps sums of."""
MOST_WARPS = 8
"""Query heads that a block of attention takes."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """The int8 form of a buffer: uint32 codes, float32 scales, int32 sums, as `kernels.rounding` writes them."""

    codes: GpuArray
    scales: GpuArray
    sums: GpuArray


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of a layer: words and float16 scales of each (f16: no scales, the words stand for them)."""

    form: KVForm
    keys: GpuArray
    key_scales: GpuArray
    values: GpuArray
    value_scales: GpuArray


@dataclass(frozen=True, slots=True)
class Memory:
    """Every array that launches name, but weights."""

    buffers: dict[str, GpuArray]
    rounded: dict[str, Rounded]
    caches: list[Cache]
    rotations: dict[RopeTable, tuple[GpuArray, GpuArray]]
    partials: GpuArray
    places: GpuArray


def over(count: int, block: int) -> int:
    """Blocks of `block` threads for `count` of them."""
    return max(1, -(-count // block))


def tile_for(n_rows: int) -> int:
    """Tokens of a product's tile."""
    return next(tile for tile in (1, 2, 4, MOST_TILE) if tile >= min(n_rows, MOST_TILE))


class Lowering:
    """Turns the stages of one model into calls."""

    def __init__(
        self,
        driver: Driver,
        layout: BufferLayout,
        memory: Memory,
        step: StepRecord,
        place: Callable[[Weight], Placed],
        large: LargeProducts | None = None,
    ) -> None:
        self._kernels, self._sizes = driver.kernels, driver.sizes
        self._layout, self._memory, self._step, self._place = layout, memory, step, place
        self._large = large
        self._fresh: set[str] = set()
        self._flat = (driver.sizes.threads, 1)

    def _over(self, count: int) -> int:
        """Blocks for `count` threads that work for themselves."""
        return over(count, self._flat[0])

    def calls(self, stage: Stage) -> list[Call]:
        """The launches of a stage. Raises UnsupportedModel for an op there is not."""
        found: list[Call] = []
        self._fresh.clear()
        for op in stage.ops:
            found += self._lower(op)
        return found

    def _lower(self, op: Op) -> list[Call]:
        match op:
            case Embed():
                return self._embed(op, op.scale, self._step.tokens_at, 0)
            case PositionEmbed():
                return self._embed(op, 1.0, self._step.positions_at, 1)
            case LayerNorm():
                return [self._layer_norm(op)]
            case RMSNorm():
                return [self._norm(op)]
            case MatMul():
                return self._product(op)
            case Rope():
                return [self._rope(op)]
            case StoreKV():
                return [self._store(op, op.key, True), self._store(op, op.value, False)]
            case Attention():
                return self._attention(op)
            case GatedAct() | Act() | Add() | SoftCap() | TakeOutputs():
                return [self._pointwise(op)]
        raise UnsupportedModel(f"the cuda device has no {type(op).__name__}; the devices cpu and reference run it")

    def _written(self, name: str) -> None:
        """The int8 form of a buffer is out of date."""
        self._fresh.discard(name)

    def _is_large(self, n_rows: int) -> bool:
        """Whether products of so many rows are left to cuBLAS."""
        return self._large is not None and n_rows >= self._large.fewest

    def _stride(self, name: str) -> int:
        return self._layout.shape(name)[1]

    def _rows(self, name: str) -> Callable[[Shape], int]:
        """How many rows of a buffer a pass has."""
        is_tokens = self._layout.is_tokens(name)
        return lambda shape: shape.tokens if is_tokens else shape.outputs

    def _embed(self, op: Embed | PositionEmbed, scale: float, rows_at: int, adds: int) -> list[Call]:
        """Rows of a matrix, whose numbers stand in the step from `rows_at` on."""
        self._written(op.out)
        placed, out, stride = self._place(op.weight), self._memory.buffers[op.out], self._stride(op.out)
        form, factor = placed.form, np.float32(scale)
        at = (self._step.array, rows_at, out)
        arguments: tuple[object, ...]
        if isinstance(form, IntegerForm):
            kernel = self._kernels.get("embedding", "integer_rows", *form.constants)
            count = op.weight.columns // BLOCK
            arguments = (*placed.integer_arrays(), *at, count, stride, factor, adds)
        else:
            assert isinstance(form, FloatForm)
            kernel = self._kernels.get("embedding", "float_rows", form.kind)
            count = padded(op.weight.columns) // 8
            arguments = (placed.region("codes"), *at, count, stride, factor, adds)
        return [lambda shape: Launch(kernel, (self._over(count), shape.tokens, 1), self._flat, arguments)]

    def _norm(self, op: RMSNorm) -> Call:
        self._written(op.out)
        kernel = self._kernels.get("pointwise", "rms_norm")
        buffers, rows = self._memory.buffers, self._rows(op.source)
        strides = self._stride(op.source), self._stride(op.out)
        weight = self._place(op.weight).region("values")
        arguments = (buffers[op.source], weight, buffers[op.out], op.width, *strides, np.float32(op.epsilon))
        block = (self._sizes.lanes, self._sizes.norm_warps)
        return lambda shape: Launch(kernel, (op.groups, rows(shape), 1), block, arguments)

    def _layer_norm(self, op: LayerNorm) -> Call:
        self._written(op.out)
        kernel = self._kernels.get("pointwise", "layer_norm")
        buffers, rows = self._memory.buffers, self._rows(op.source)
        vectors = (self._place(part).region("values") for part in (op.weight, op.bias))
        ends = op.width, self._stride(op.source), self._stride(op.out), np.float32(op.epsilon)
        arguments = (buffers[op.source], *vectors, buffers[op.out], *ends)
        block = (self._sizes.lanes, self._sizes.norm_warps)
        return lambda shape: Launch(kernel, (1, rows(shape), 1), block, arguments)

    def _round(self, name: str) -> list[Call]:
        """Make the int8 form of a buffer, unless it is there."""
        if name in self._fresh:
            return []
        self._fresh.add(name)
        kernel, rounded, rows = self._kernels.get("rounding", "rounding"), self._memory.rounded[name], self._rows(name)
        per_row = self._stride(name) // BLOCK
        arrays = (self._memory.buffers[name], rounded.codes, rounded.scales, rounded.sums)

        def call(shape: Shape) -> Startable:
            if self._is_large(rows(shape)):
                return Series([])
            count = rows(shape) * per_row
            return Launch(kernel, (self._over(count), 1, 1), self._flat, (*arrays, count))

        return [call]

    def _product(self, op: MatMul) -> list[Call]:
        placed, rows = self._place(op.weight), self._rows(op.source)
        out, stride = self._memory.buffers[op.out], self._stride(op.out)
        bias = None if op.bias is None else self._place(op.bias).region("values")
        ends = (out if bias is None else bias, out, op.weight.n_rows)
        mode = (bias is not None) + 2 * op.accumulate
        form = placed.form
        calls: list[Call] = []
        fixed: tuple[object, ...]
        if isinstance(form, IntegerForm):
            calls = self._round(op.source)
            rounded = self._memory.rounded[op.source]
            name, fixed = ("products", "integer_product"), form.constants
            sources: tuple[object, ...] = (*placed.integer_arrays(), rounded.codes, rounded.scales, rounded.sums)
            count = op.weight.columns // BLOCK
        else:
            assert isinstance(form, FloatForm)
            name, fixed = ("floats", "float_product"), (form.kind,)
            sources = (placed.region("codes"), self._memory.buffers[op.source])
            count = padded(op.weight.columns) // 8
        blocks = over(op.weight.n_rows, ROW_WARPS)

        def call(shape: Shape) -> Startable:
            n_rows = rows(shape)
            if self._large is not None and self._is_large(n_rows):
                source = self._memory.buffers[op.source], self._stride(op.source), n_rows
                return Series(self._large.launches(placed, source, (out, stride, n_rows), bias, mode))
            tile = tile_for(n_rows)
            kernel = self._kernels.get(*name, *fixed, tile)
            arguments = (*sources, *ends, count, n_rows, stride, mode)
            return Launch(kernel, (blocks, -(-n_rows // tile), 1), (self._sizes.lanes, ROW_WARPS), arguments)

        self._written(op.out)
        return [*calls, call]

    def _rope(self, op: Rope) -> Call:
        self._written(op.value)
        kernel, half = self._kernels.get("pointwise", "rope"), op.table.rotary_width // 2
        arguments = (
            self._memory.buffers[op.value],
            *self._memory.rotations[op.table],
            self._step.array,
            self._step.positions_at,
            op.heads,
            op.head_width,
            half,
            self._stride(op.value),
        )
        blocks = self._over(op.heads * half)
        return lambda shape: Launch(kernel, (blocks, shape.tokens, 1), self._flat, arguments)

    def _store(self, op: StoreKV, name: str, is_key: bool) -> Call:
        cache, source, stride = self._memory.caches[op.layer], self._memory.buffers[name], self._stride(name)
        words, scales = (cache.keys, cache.key_scales) if is_key else (cache.values, cache.value_scales)
        at = (source, self._step.array, self._step.slots_at)
        width = cache.form.padded_width
        if cache.form.kind == "f16":
            kernel, count = self._kernels.get("cache", "store_halves"), op.kv_heads * width // 2
            arguments: tuple[object, ...] = (*at, words, op.kv_heads, op.head_width, width // 2, stride)
        else:
            kernel, count = self._kernels.get("cache", "store_codes"), op.kv_heads * width // BLOCK
            arguments = (*at, words, scales, op.kv_heads, op.head_width, width // BLOCK, stride)
        return lambda shape: Launch(kernel, (self._over(count), shape.tokens, 1), self._flat, arguments)

    def _attention(self, op: Attention) -> list[Call]:
        self._written(op.out)
        memory, cache, n_chunks = self._memory, self._memory.caches[op.layer], self._layout.n_chunks
        form, group = cache.form, op.heads // op.kv_heads
        warps = min(group, MOST_WARPS)
        has_window, window = op.window is not None, op.window or 0
        fixed = (form.kind, op.head_width, form.padded_width, warps, has_window, op.soft_cap is not None)
        stepped = (self._step.array, memory.places)
        arguments = (
            *(memory.buffers[op.query], cache.keys, cache.key_scales, cache.values, cache.value_scales),
            *(*stepped, memory.buffers[op.out], memory.partials, op.kv_heads, group),
            *(self._stride(op.query), self._stride(op.out), self._step.table_width, n_chunks),
            *(np.float32(op.scale), window, np.float32(op.soft_cap or 0)),
        )
        blocks = op.kv_heads * over(group, warps)
        joined = (memory.partials, *stepped, memory.buffers[op.out], n_chunks, self._stride(op.out), window)

        def attend(shape: Shape) -> Launch:
            is_split = shape.tokens <= SPLIT_TOKENS
            kernel = self._kernels.get("attention", "attention", *fixed, is_split)
            grid = (shape.tokens, blocks, shape.chunks if is_split else 1)
            return Launch(kernel, grid, (self._sizes.lanes, warps), arguments)

        def join(shape: Shape) -> Launch:
            kernel = self._kernels.get("attention", "joining", op.head_width, form.padded_width, has_window)
            rows = shape.tokens if shape.tokens <= SPLIT_TOKENS else 0
            return Launch(kernel, (rows, op.heads, 1), (self._sizes.lanes, 1), joined)

        return [attend, join]

    def _pointwise(self, op: GatedAct | Act | Add | SoftCap | TakeOutputs) -> Call:
        buffers, step = self._memory.buffers, self._step
        arguments: tuple[object, ...]
        match op:
            case GatedAct():
                kernel = self._kernels.get("pointwise", "gated", op.activation)
                out, strides = op.out, {self._stride(name) for name in (op.gate, op.up, op.out)}
                assert len(strides) == 1
                arguments = (buffers[op.gate], buffers[op.up], buffers[op.out], op.width, strides.pop())
            case Act():
                kernel, out = self._kernels.get("pointwise", "plain", op.activation), op.out
                assert self._stride(op.source) == self._stride(op.out)
                arguments = (buffers[op.source], buffers[op.out], op.width, self._stride(op.out))
            case Add():
                kernel, out = self._kernels.get("pointwise", "addition"), op.out
                strides_of = self._stride(op.source), self._stride(op.out)
                arguments = (buffers[op.source], buffers[op.out], op.width, *strides_of)
            case SoftCap():
                kernel, out = self._kernels.get("pointwise", "soft_cap"), op.value
                arguments = (buffers[op.value], op.width, self._stride(op.value), np.float32(op.cap))
            case TakeOutputs():
                kernel, out = self._kernels.get("pointwise", "taking"), op.out
                ends = (op.width, self._stride(op.source), self._stride(op.out))
                arguments = (buffers[op.source], buffers[op.out], step.array, step.outputs_at, *ends)
        self._written(out)
        rows, blocks = self._rows(out), self._over(op.width)
        return lambda shape: Launch(kernel, (blocks, rows(shape), 1), self._flat, arguments)
