"""From ops to kernel calls: places buffers and packed weights, and writes each call's argument record.

In: a ModelSpec, a GGUF file, KV pools and the step record. Out: the calls of a tape in order. Rows of query, key and
value buffers hold each head padded to whole vectors, and so do the weight rows that produce them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends import weights
from edgeinfer.backends.base import Floats, Limits
from edgeinfer.backends.cpu.jit import Kernel
from edgeinfer.backends.cpu.kernels import activations, attention, product, product_float, rotary, rows
from edgeinfer.backends.cpu.layout import LANES, BufferLayout, Heads, heads_of, padded, tile_tokens
from edgeinfer.backends.cpu.memory import aligned
from edgeinfer.backends.cpu.packing import PackedMatrix, PackedWeights
from edgeinfer.backends.cpu.panels import FLOAT_COLUMNS, IntegerPanel
from edgeinfer.backends.cpu.step import StepRecord, address
from edgeinfer.backends.cpu.tape import Call
from edgeinfer.models import rope
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.spec import ModelSpec
from edgeinfer.ops import (
    Add,
    Attention,
    Embed,
    GatedAct,
    MatMul,
    Op,
    RMSNorm,
    Rope,
    RopeTable,
    Rows,
    SoftCap,
    StoreKV,
    TakeOutputs,
    Weight,
)

NOTHING: frozenset[str] = frozenset()
NO_WINDOW = 1 << 30
"""More positions than any context; kernels compute with it in 32 bits."""


@dataclass(frozen=True, slots=True)
class KVPool:
    """The KV pages of one layer."""

    keys: NDArray[np.float16]  # [n_pages, G, head_width, PAGE]
    values: NDArray[np.float16]  # [n_pages, G, PAGE, head_padded]


class Lowering:
    """Builds the calls of one model; owns buffers, scratch and tables that they point into."""

    def __init__(
        self,
        spec: ModelSpec,
        file: GGUFFile,
        limits: Limits,
        packed: PackedWeights,
        pools: list[KVPool],
        step: StepRecord,
        n_workers: int,
    ) -> None:
        self._spec, self._file, self._limits, self._packed, self._pools = spec, file, limits, packed, pools
        self._step, self._n_workers = step, n_workers
        self._heads, self._layout = heads_of(spec), BufferLayout(spec, file.tensors, limits)
        self._rows = {buffer.name: buffer.rows for buffer in spec.buffers}
        self.buffers: dict[str, Floats] = {buffer.name: self._new_buffer(buffer.name) for buffer in spec.buffers}
        self._rounded: dict[str, NDArray[np.uint8]] = {}
        self._fresh: set[str] = set()  # buffers whose int8 form is up to date
        self._rotations: dict[RopeTable, tuple[Floats, Floats]] = {}
        self._scratch: NDArray[np.uint8] | None = None
        self._partials: Floats | None = None
        self._vectors: list[Floats] = []
        self._zeros = aligned((LANES,), np.float32)

    @property
    def resident_bytes(self) -> int:
        """Bytes of buffers and tables."""
        tables = sum(table.nbytes for pair in self._rotations.values() for table in pair)
        rounded = sum(array.nbytes for array in self._rounded.values())
        partials = 0 if self._partials is None else self._partials.nbytes
        return tables + rounded + partials + sum(array.nbytes for array in self.buffers.values())

    def calls(self) -> list[tuple[Op, list[Call]]]:
        """The calls of each op of the model, in order."""
        return [(op, self._lower(op)) for op in self._spec.ops()]

    def value(self, name: str, n_rows: int) -> Floats:
        """A copy of the first rows of a buffer, without padding: float32[n_rows, width]."""
        width, heads, values = self._spec.buffer(name).width, self._heads.get(name), self.buffers[name][:n_rows]
        if heads is not None:
            values = values.reshape(n_rows, heads.count, heads.padded)[..., : heads.width].reshape(n_rows, -1)
        return values[:, :width].copy()

    def rounded(self, name: str, n_rows: int) -> Floats:
        """What the int8 form of a buffer's first rows stands for: float32[n_rows, width]."""
        n_blocks = self._layout.n_blocks(name)
        values: Floats = activations.read_records(self._rounded[name], n_rows, padded(n_blocks, 2))
        return values[:, : self._spec.buffer(name).width]

    def _lower(self, op: Op) -> list[Call]:
        match op:
            case Embed():
                return self._written([], op.out)  # the lane fills it before the tape runs
            case RMSNorm():
                return self._written([self._norm(op)], op.out)
            case MatMul():
                return self._written(self._product(op), op.out)
            case Rope():
                return self._written([self._rope(op)], op.value)
            case StoreKV():
                return [self._store(op)]
            case Attention():
                return self._written(self._attention(op), op.out)
            case GatedAct():
                return self._written([self._columns(rows.GATED[op.activation], op.gate, op.up, op.out)], op.out)
            case Add():
                return self._written([self._columns(rows.ADD, op.source, op.source, op.out)], op.out)
            case SoftCap():
                return self._written([self._columns(rows.SOFT_CAP, op.value, op.value, op.value, op.cap)], op.value)
            case TakeOutputs():
                return self._written([self._take(op)], op.out)

    def _written(self, calls: list[Call], name: str) -> list[Call]:
        self._fresh.discard(name)
        return calls

    def _new_buffer(self, name: str) -> Floats:
        values: Floats = aligned(self._layout.shape(name), np.float32)
        return values

    def _stride(self, name: str) -> int:
        return int(self.buffers[name].strides[0])

    def _count(self, name: str) -> int:
        return self._step.n_tokens_at if self._rows[name] is Rows.TOKENS else self._step.n_outputs_at

    def _by_tokens(self, name: str) -> str:
        return f"by {self._rows[name].value}"

    def _by_columns(self, name: str) -> str:
        return f"by {self.buffers[name].shape[1]} columns"

    def _vector(self, weight: Weight, length: int, heads: Heads | None = None) -> Floats:
        """A 1-D weight, zero-padded (per head where rows are cut into heads)."""
        values = weights.vector(self._file, weight)
        vector: Floats = aligned((length,), np.float32)
        if heads is None or len(values) == heads.width:
            vector[: len(values)] = values
        else:
            vector.reshape(heads.count, heads.padded)[:, : heads.width] = values.reshape(heads.count, heads.width)
        self._vectors.append(vector)
        return vector

    def _norm(self, op: RMSNorm) -> Call:
        heads = self._heads.get(op.source) if op.groups > 1 or op.source in self._heads else None
        group = heads.padded if heads else padded(op.width)
        args = np.zeros(1, rows.NORM_ARGUMENTS)
        args["source"], args["source_stride"] = address(self.buffers[op.source]), self._stride(op.source)
        args["out"], args["out_stride"] = address(self.buffers[op.out]), self._stride(op.out)
        args["weight"] = address(self._vector(op.weight, group))
        args["groups"], args["group_stride"], args["n_vectors"] = op.groups, group * 4, group // LANES
        args["count"], args["width"], args["epsilon"] = self._count(op.source), op.width, op.epsilon
        share = self._by_tokens(op.source)
        return Call(rows.RMS_NORM, args, frozenset({op.source}), frozenset({op.out}), share)

    def _round(self, name: str) -> list[Call]:
        """The call that makes the int8 form of a buffer, unless it is there already."""
        values = self.buffers[name]
        n_blocks = self._layout.n_blocks(name)
        if name not in self._rounded:
            self._rounded[name] = aligned((self._layout.rounded_bytes(name),), np.uint8)
        if name in self._fresh:
            return []
        self._fresh.add(name)
        args = np.zeros(1, activations.ARGUMENTS)
        args["source"], args["source_stride"] = address(values), self._stride(name)
        args["n_blocks"], args["n_padded"] = n_blocks, padded(n_blocks, 2)
        args["out"], args["count"] = address(self._rounded[name]), self._count(name)
        reads, writes = frozenset({name}), frozenset({f"{name} int8"})
        return [Call(activations.QUANTISE, args, reads, writes, self._by_tokens(name))]

    def _product(self, op: MatMul) -> list[Call]:
        matrix = self._packed.matrix(op.weight, self._heads.get(op.out))
        integer = isinstance(matrix.panel, IntegerPanel)
        args = np.zeros(1, product.ARGUMENTS if integer else product_float.ARGUMENTS)
        args["weights"], args["panel_bytes"] = address(matrix.data), matrix.data.shape[1]
        args["n_panels"] = len(matrix.data)
        args["out"], args["out_stride"] = address(self.buffers[op.out]), self._stride(op.out)
        args["count"], args["accumulate"] = self._count(op.source), op.accumulate
        args["bias"], args["bias_stride"] = self._bias(op, matrix)
        out = frozenset({op.out})
        reads = out if op.accumulate else frozenset()
        share = f"by {len(matrix.data) * LANES} columns"
        if isinstance(matrix.panel, IntegerPanel):
            before = self._round(op.source)
            args["n_records"] = matrix.panel.n_records(op.weight.columns)
            args["activations"] = address(self._rounded[op.source])
            kernel = product.product_kernel(matrix.panel, self._packed.isa_name)
            return [*before, Call(kernel, args, reads, out, share, frozenset({f"{op.source} int8"}))]
        args["n_rounds"] = padded(op.weight.columns, FLOAT_COLUMNS) // FLOAT_COLUMNS
        args["source"], args["source_stride"] = address(self.buffers[op.source]), self._stride(op.source)
        kernel = product_float.product_float_kernel(matrix.panel)
        return [Call(kernel, args, reads, out, share, frozenset({op.source}))]

    def _bias(self, op: MatMul, matrix: PackedMatrix) -> tuple[int, int]:
        """Address of the bias and bytes between panels."""
        if op.bias is None:
            return address(self._zeros), 0
        return address(self._vector(op.bias, len(matrix.data) * LANES, self._heads.get(op.out))), LANES * 4

    def _rope(self, op: Rope) -> Call:
        if op.table not in self._rotations:
            factors = weights.rope_factors(self._file, op.table)
            self._rotations[op.table] = rope.rotations(op.table, self._limits.n_context, factors)
        cosines, sines = self._rotations[op.table]
        args = np.zeros(1, rotary.ROPE_ARGUMENTS)
        args["value"], args["stride"] = address(self.buffers[op.value]), self._stride(op.value)
        args["heads"], args["head_stride"] = op.heads, padded(op.head_width) * 4
        args["half"], args["cosines"], args["sines"] = op.table.rotary_width // 2, address(cosines), address(sines)
        args["step"] = self._step.n_tokens_at
        names = frozenset({op.value})
        return Call(rotary.ROPE, args, names, names, self._by_tokens(op.value))

    def _store(self, op: StoreKV) -> Call:
        pool = self._pools[op.layer]
        args = np.zeros(1, rotary.STORE_ARGUMENTS)
        args["key"], args["value"] = address(self.buffers[op.key]), address(self.buffers[op.value])
        args["stride"], args["head_stride"] = self._stride(op.key), padded(op.head_width) * 4
        args["kv_heads"], args["head_width"], args["head_padded"] = op.kv_heads, op.head_width, padded(op.head_width)
        args["keys"], args["values"], args["step"] = address(pool.keys), address(pool.values), self._step.n_tokens_at
        reads, writes = frozenset({op.key, op.value}), frozenset({f"kv {op.layer}"})
        return Call(rotary.STORE_KV, args, reads, writes, self._by_tokens(op.key))

    def _attention(self, op: Attention) -> list[Call]:
        pool, heads = self._pools[op.layer], self._heads[op.query]
        scratch, partials = self._attention_memory(op)
        args = np.zeros(1, attention.ARGUMENTS)
        args["query"], args["query_stride"] = address(self.buffers[op.query]), self._stride(op.query)
        args["out"], args["out_stride"] = address(self.buffers[op.out]), self._stride(op.out)
        args["keys"], args["values"] = address(pool.keys), address(pool.values)
        args["heads"], args["kv_heads"] = op.heads, op.kv_heads
        args["head_width"], args["head_padded"] = op.head_width, heads.padded
        args["window"] = op.window or NO_WINDOW
        args["scratch"], args["scratch_stride"] = address(scratch), scratch.shape[1]
        args["tile_rows"] = tile_tokens(self._spec) * op.heads // op.kv_heads
        args["partials"], args["max_chunks"] = address(partials), partials.shape[2]
        args["step"], args["scale"], args["cap"] = self._step.n_tokens_at, op.scale, op.soft_cap or 0.0
        reads = frozenset({op.query, f"kv {op.layer}"})
        own, kept = frozenset({op.out}), frozenset({"attention partials"})
        return [
            Call(attention.BY_TILE, args, NOTHING, own, "by tiles", reads),
            Call(attention.BY_PAGE, args, NOTHING, kept, "by pages", reads),
            Call(attention.JOIN_PAGES, args, NOTHING, own, "by tiles", kept),  # one of the two writes `out` in a step
        ]

    def _attention_memory(self, op: Attention) -> tuple[NDArray[np.uint8], Floats]:
        """Scratch of each worker and the partials of small passes, shared by all layers."""
        width, heads_padded = op.head_width, padded(op.head_width)
        tile_rows = tile_tokens(self._spec) * op.heads // op.kv_heads
        if self._scratch is None:
            size = padded(attention.scratch_bytes(tile_rows, width, heads_padded), 4096)
            self._scratch = aligned((self._n_workers, size), np.uint8)
            self._partials = aligned(self._layout.partials_shape, np.float32)
        assert self._partials is not None
        return self._scratch, self._partials

    def _columns(self, kernel: Kernel, source: str, other: str, out: str, cap: float = 0.0) -> Call:
        args = np.zeros(1, rows.COLUMNS_ARGUMENTS)
        args["source"], args["other"] = address(self.buffers[source]), address(self.buffers[other])
        args["out"], args["stride"] = address(self.buffers[out]), self._stride(out)
        args["n_vectors"], args["count"], args["cap"] = self.buffers[out].shape[1] // LANES, self._count(out), cap
        return Call(kernel, args, frozenset({source, other, out}), frozenset({out}), self._by_columns(out))

    def _take(self, op: TakeOutputs) -> Call:
        args = np.zeros(1, rows.TAKE_ARGUMENTS)
        args["source"], args["out"] = address(self.buffers[op.source]), address(self.buffers[op.out])
        args["stride"], args["n_vectors"] = self._stride(op.out), self.buffers[op.out].shape[1] // LANES
        args["outputs"] = self._step.outputs_at
        args["count"] = self._step.n_outputs_at
        taken, out = frozenset({op.source}), frozenset({op.out})
        return Call(rows.TAKE_OUTPUTS, args, NOTHING, out, self._by_tokens(op.out), taken)
