"""From ops to kernel calls: places buffers and packed weights, and writes each call's argument record.

In: a ModelSpec, a GGUF file, KV pools and the step record, and sections if others take part. Out: the calls of a tape.
Rows of query, key and value buffers hold each head padded to whole vectors, and so do the weight rows that make them.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import PEAK_LANES, Floats, Limits
from edgeinfer.backends.cpu import catalogue, records
from edgeinfer.backends.cpu.catalogue import Kernel
from edgeinfer.backends.cpu.fusion import Sections
from edgeinfer.backends.cpu.layout import BLOCK, LANES, padded, tile_tokens
from edgeinfer.backends.cpu.memory import aligned
from edgeinfer.backends.cpu.needs import Choice
from edgeinfer.backends.cpu.packing import PackedMatrix, PackedWeights
from edgeinfer.backends.cpu.pages import KVPool, attention_scratch_bytes
from edgeinfer.backends.cpu.panels import FLOAT_COLUMNS, FloatPanel, IntegerPanel
from edgeinfer.backends.cpu.rotations import Rotations
from edgeinfer.backends.cpu.rounded import RECORD_BYTES, TILE
from edgeinfer.backends.cpu.step import StepRecord, address
from edgeinfer.backends.cpu.tape import Call
from edgeinfer.backends.cpu.values import Values
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
    SoftCap,
    StoreKV,
    TakeOutputs,
)

NOTHING: frozenset[str] = frozenset()
NO_WINDOW = 1 << 30
"""More positions than any context; kernels compute with it in 32 bits."""
CACHED_BYTES = 1 << 19
"""Rounded activations that stay in a core's own cache beside the panels that stream past them."""
TILED_BYTES = 1 << 21
"""The same for tile registers: more of them come from further away, but panels are unpacked less often."""


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
        sections: Sections | None = None,
    ) -> None:
        self._spec, self._file, self._limits, self._packed, self._pools = spec, file, limits, packed, pools
        self._step, self._n_workers, self._choice = step, n_workers, Choice(spec, file.tensors, sections)
        self.values = Values(spec, file, limits, step, n_workers, packed.isa_name in catalogue.TILED)
        self._is_whole = sections is None
        self._fresh: set[str] = set()  # buffers whose int8 form is up to date
        self._alone = False  # whether calls for passes of one token are being made
        self.rotations = Rotations(file, limits.n_context)
        self._scratch: NDArray[np.uint8] | None = None
        self._partials: Floats | None = None
        self._unpacked: NDArray[np.uint8] | None = None
        self.peaks: Floats = aligned(self.values.layout.peaks_shape, np.float32)

    @property
    def resident_bytes(self) -> int:
        """Bytes of buffers and tables."""
        return (
            self.rotations.nbytes
            + (0 if self._partials is None else self._partials.nbytes)
            + self.values.resident_bytes
            + self.peaks.nbytes
        )

    def calls(self, alone: bool = False) -> list[tuple[Op, list[Call]]]:
        """The calls of each op of the model, in order; an op that another takes in has none.

        `alone`: for passes of one token, whose activations every worker rounds for itself: that needs no barriers.
        """
        ops, fusion = self._choice.ops, self._choice.fusion
        taken = {norm: take for take, norm in fusion.taken_rows.items()}
        paired = {place for pair in fusion.gated.values() for place in pair}
        self._alone = alone
        self._fresh.clear()
        found: list[tuple[Op, list[Call]]] = []
        for place, op in enumerate(ops):
            if place in self._choice.sections.stops:
                self._fresh.clear()  # values of others may have come
            if place in fusion.taken_rows or place in paired:
                calls = self._round(op.source) if isinstance(op, MatMul) else []
            elif isinstance(op, RMSNorm) and place in fusion.rounded_norms:
                take = ops[taken[place]] if place in taken else None
                calls = self._rounded_norm(op, take.source if isinstance(take, TakeOutputs) else None)
            elif isinstance(op, GatedAct) and place in fusion.gated:
                gate, up = (ops[pair] for pair in fusion.gated[place])
                assert isinstance(gate, MatMul)
                assert isinstance(up, MatMul)
                calls = self._written(self._gated(gate, up, op), op.out)
            else:
                calls = self._lower(op)
            found.append((op, calls))
        if self._is_whole:
            found[-1][1].append(self._find_peaks())
        products = [call for _, calls in found for call in calls if call.arguments.dtype == records.PRODUCT]
        for call, following in pairwise(products):
            call.arguments["next"] = address(following.arguments)
        return found

    def _matrix(self, op: MatMul) -> PackedMatrix:
        return self._packed.matrix(op.weight, self.values.heads.get(op.out))

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
                return self._written([self._columns(catalogue.GATED[op.activation], op.gate, op.up, op.out)], op.out)
            case Add():
                return self._written([self._columns(catalogue.ADD, op.source, op.source, op.out)], op.out)
            case SoftCap():
                capped = self._columns(catalogue.SOFT_CAP, op.value, op.value, op.value, op.cap)
                return self._written([capped], op.value)
            case TakeOutputs():
                return self._written([self._take(op)], op.out)

    def _written(self, calls: list[Call], name: str) -> list[Call]:
        self._fresh.discard(name)
        return calls

    def _by_tokens(self, name: str) -> str:
        return f"by {self.values.rows(name).value}"

    def _by_parts(self) -> str:
        return f"by tokens and {self._spec.kv_heads} heads"

    def _by_columns(self, name: str) -> str:
        return f"by {self.values.buffers[name].shape[1] // BLOCK} column pairs"

    def _norm(self, op: RMSNorm) -> Call:
        heads = self.values.heads.get(op.source) if op.groups > 1 or op.source in self.values.heads else None
        group = heads.padded if heads else padded(op.width)
        args = np.zeros(1, records.RMS_NORM)
        args["source"], args["source_stride"] = self.values.at(op.source)
        args["out"], args["out_stride"] = self.values.at(op.out)
        args["weight"] = address(self.values.vector(op.weight, group))
        args["groups"], args["group_stride"], args["n_vectors"] = op.groups, group * 4, group // LANES
        args["count"], args["width"], args["epsilon"] = self.values.count(op.source), op.width, op.epsilon
        share = self._by_tokens(op.source)
        return Call(catalogue.RMS_NORM, args, frozenset({op.source}), frozenset({op.out}), share)

    def _round(self, name: str) -> list[Call]:
        """The call that makes the int8 form of a buffer, unless it is there already."""
        if name in self._fresh:
            return []
        args = self._round_arguments(name)
        args["source"], args["source_stride"] = self.values.at(name)
        args["count"] = self.values.count(name)
        return [self._round_call(name, name, args)]

    def _rounded_norm(self, op: RMSNorm, taken_from: str | None) -> list[Call]:
        """The call that normalises and rounds in one, of the rows whose logits are wanted if `taken_from` is given."""
        source = taken_from or op.source
        args = self._round_arguments(op.out)
        args["source"], args["source_stride"] = self.values.at(source)
        args["rows"] = self._step.outputs_at if taken_from else 0
        args["weight"] = address(self.values.vector(op.weight, padded(op.width, BLOCK)))
        args["count"], args["width"], args["epsilon"] = self.values.count(op.out), op.width, op.epsilon
        return [self._round_call(op.out, source, args, bool(taken_from))]

    def _round_arguments(self, name: str) -> NDArray[np.void]:
        """Where the int8 form of a buffer goes."""
        n_blocks = self.values.layout.n_blocks(name)
        n_padded = self.values.layout.padded_blocks(name)
        args = np.zeros(1, records.ROUND_ROWS)
        args["n_blocks"], args["n_padded"] = n_blocks, n_padded
        args["out"], args["out_stride"] = self.values.rounded_at(name, self._alone)
        args["tiled"] = self.values.tiled(name)
        return args

    def _round_call(self, name: str, source: str, args: NDArray[np.void], takes_rows: bool = False) -> Call:
        self._fresh.add(name)
        sources, out = frozenset({source}), frozenset({f"{name} int8"})
        if self._alone:
            return Call(catalogue.ROUND_ROWS, args, NOTHING, NOTHING, "all of them", sources)
        reads, gathers = (NOTHING, sources) if takes_rows else (sources, NOTHING)
        return Call(catalogue.ROUND_ROWS, args, reads, out, self._by_tokens(name), gathers)

    def _product(self, op: MatMul) -> list[Call]:
        matrix = self._matrix(op)
        if not isinstance(matrix.panel, IntegerPanel):
            return [self._float_product(op, matrix)]
        before = self._round(op.source)
        args, reads = self._product_arguments(op, matrix)
        args["unit_bytes"], args["second"] = 2 * matrix.data.shape[1], matrix.data.shape[1]
        args["n_units"], args["accumulate"] = len(matrix.data) // 2, op.accumulate
        args["ahead"] = 1
        args["out"], args["out_stride"] = self.values.at(op.out)
        args["bias"], args["bias_stride"] = self._bias(op, matrix)
        out = frozenset({op.out})
        own = out if op.accumulate else NOTHING
        share = f"by {len(matrix.data) // 2} column pairs"
        return [*before, *self._multiplied(op, args, own, out, share, reads)]

    def _gated(self, gate: MatMul, up: MatMul, op: GatedAct) -> list[Call]:
        """Both products and the activation in one."""
        gates, ups = self._matrix(gate), self._matrix(up)
        assert isinstance(gates.panel, IntegerPanel)
        args, reads = self._product_arguments(gate, gates)
        args["unit_bytes"], args["second"] = gates.data.shape[1], address(ups.data) - address(gates.data)
        args["n_units"], args["curve"] = len(gates.data), records.CURVES[op.activation]
        args["ahead"] = 1
        args["out"], args["out_stride"] = self.values.at(op.out)
        args["bias"] = address(self.values.zeros)
        share = f"by {len(gates.data)} columns"
        return self._multiplied(gate, args, NOTHING, frozenset({op.out}), share, reads)

    def _multiplied(
        self,
        op: MatMul,
        args: NDArray[np.void],
        own: frozenset[str],
        out: frozenset[str],
        share: str,
        reads: frozenset[str],
    ) -> list[Call]:
        """The calls of a product: whole tiles of tokens by tile registers, if there are any, and the others."""
        panel, isa_name = self._choice.panel(op), self._packed.isa_name
        assert isinstance(panel, IntegerPanel)
        if not self._alone:
            share += " or tokens"  # as the kernel finds better: nobody else's share is the same
        rest = Call(catalogue.product(panel, isa_name), args, own, out, share, reads)
        tiles = self._choice.tiles(op, isa_name)
        if self._alone or tiles is None:
            return [rest]
        scratch = self._tile_memory()
        args["tiled"], args["unpacked"], args["unpacked_stride"] = 1, address(scratch), scratch.strides[0]
        of_tiles = args.copy()
        of_tiles["block_tokens"] = _block_tokens(int(args["n_blocks"][0]) * RECORD_BYTES, TILED_BYTES)
        return [Call(tiles, of_tiles, own, out, share, reads), rest]

    def _tile_memory(self) -> NDArray[np.uint8]:
        """Scratch of each worker, shared by all products."""
        if self._unpacked is None:
            n_bytes = padded(records.TILE_SCRATCH_BYTES, 4096)
            self._unpacked = aligned((self._n_workers, n_bytes), np.uint8)
        return self._unpacked

    def _product_arguments(self, op: MatMul, matrix: PackedMatrix) -> tuple[NDArray[np.void], frozenset[str]]:
        """What a product reads, and the name of the int8 form that it gathers (none where workers have their own)."""
        assert isinstance(matrix.panel, IntegerPanel)
        n_padded = self.values.layout.padded_blocks(op.source)
        args = np.zeros(1, records.PRODUCT)
        args["weights"], args["n_records"] = address(matrix.data), matrix.panel.n_records(op.weight.columns)
        args["n_blocks"], args["count"] = n_padded, self.values.count(op.source)
        args["activations"], args["activations_stride"] = self.values.rounded_at(op.source, self._alone)
        args["block_tokens"] = _block_tokens(n_padded * RECORD_BYTES, CACHED_BYTES)
        return args, NOTHING if self._alone else frozenset({f"{op.source} int8"})

    def _float_product(self, op: MatMul, matrix: PackedMatrix) -> Call:
        assert isinstance(matrix.panel, FloatPanel)
        args = np.zeros(1, records.FLOAT_PRODUCT)
        args["weights"], args["panel_bytes"] = address(matrix.data), matrix.data.shape[1]
        args["n_units"] = len(matrix.data) // 2
        args["n_rounds"] = padded(op.weight.columns, FLOAT_COLUMNS) // FLOAT_COLUMNS
        args["source"], args["source_stride"] = self.values.at(op.source)
        args["block_tokens"] = _block_tokens(self.values.at(op.source)[1], CACHED_BYTES)
        args["out"], args["out_stride"] = self.values.at(op.out)
        args["count"], args["accumulate"] = self.values.count(op.source), op.accumulate
        args["bias"], args["bias_stride"] = self._bias(op, matrix)
        out = frozenset({op.out})
        reads, share = out if op.accumulate else NOTHING, f"by {len(matrix.data) // 2} column pairs"
        if not self._alone:
            share += " or tokens of floats"
        kernel = catalogue.product_float(matrix.panel)
        return Call(kernel, args, reads, out, share, frozenset({op.source}))

    def _bias(self, op: MatMul, matrix: PackedMatrix) -> tuple[int, int]:
        """Address of the bias and bytes between pairs of panels."""
        if op.bias is None:
            return address(self.values.zeros), 0
        return address(
            self.values.vector(op.bias, len(matrix.data) * LANES, self.values.heads.get(op.out))
        ), 2 * LANES * 4

    def _rope(self, op: Rope) -> Call:
        cosines, sines = self.rotations.of(op.table)
        args = np.zeros(1, records.ROPE)
        args["value"], args["stride"] = self.values.at(op.value)
        args["heads"], args["head_stride"] = op.heads, padded(op.head_width) * 4
        args["half"], args["cosines"], args["sines"] = op.table.rotary_width // 2, address(cosines), address(sines)
        args["step"], args["parts"] = self._step.n_tokens_at, self._spec.kv_heads
        names = frozenset({op.value})
        return Call(catalogue.ROPE, args, names, names, self._by_parts())

    def _store(self, op: StoreKV) -> Call:
        pool = self._pools[op.layer]
        args = np.zeros(1, records.STORE_KV)
        args["key"], args["value"] = address(self.values.buffers[op.key]), address(self.values.buffers[op.value])
        args["stride"], args["head_stride"] = self.values.at(op.key)[1], padded(op.head_width) * 4
        args["kv_heads"], args["head_width"], args["step"] = op.kv_heads, op.head_width, self._step.n_tokens_at
        args["keys"], args["values"] = address(pool.keys), address(pool.values)
        args["bank_pages"], args["bank_bytes"] = pool.bank_pages, pool.bank_bytes
        args["key_bytes"], args["value_bytes"] = pool.layout.key_bytes, pool.layout.value_bytes
        reads, writes = frozenset({op.key, op.value}), frozenset({f"kv {op.layer}"})
        shared = self._by_parts() if self._alone else f"by {self._spec.kv_heads} heads"  # of one token the same
        return Call(catalogue.store_kv(pool.layout), args, reads, writes, shared)

    def _attention(self, op: Attention) -> list[Call]:
        pool, heads = self._pools[op.layer], self.values.heads[op.query]
        scratch, partials = self._attention_memory(op)
        args = np.zeros(1, records.ATTENTION)
        args["query"], args["query_stride"] = self.values.at(op.query)
        args["out"], args["out_stride"] = self.values.at(op.out)
        args["keys"], args["values"] = address(pool.keys), address(pool.values)
        args["bank_pages"], args["bank_bytes"] = pool.bank_pages, pool.bank_bytes
        args["key_bytes"], args["value_bytes"] = pool.layout.key_bytes, pool.layout.value_bytes
        args["heads"], args["kv_heads"] = op.heads, op.kv_heads
        args["head_width"], args["head_padded"] = op.head_width, heads.padded
        args["window"] = op.window or NO_WINDOW
        args["scratch"], args["scratch_stride"] = address(scratch), scratch.shape[1]
        args["tile_rows"] = tile_tokens(self._spec) * op.heads // op.kv_heads
        args["ahead"] = 1
        args["partials"], args["max_chunks"] = address(partials), partials.shape[2]
        args["step"], args["scale"], args["cap"] = self._step.n_tokens_at, op.scale, op.soft_cap or 0.0
        reads = frozenset({op.query, f"kv {op.layer}"})
        own, kept = frozenset({op.out}), frozenset({"attention partials"})
        kernels = catalogue.attention(pool.layout, self._packed.isa_name)
        return [
            Call(kernels.by_tile, args, NOTHING, own, "by tiles", reads),
            Call(kernels.by_chunk, args, NOTHING, kept, "by chunks", reads),
            Call(kernels.join, args, NOTHING, own, "by tiles", kept),  # it or the first writes `out` in a step
        ]

    def _attention_memory(self, op: Attention) -> tuple[NDArray[np.uint8], Floats]:
        """Scratch of each worker and the partials of small passes, shared by all layers."""
        tile_rows = tile_tokens(self._spec) * op.heads // op.kv_heads
        if self._scratch is None:
            size = padded(attention_scratch_bytes(tile_rows, self._pools[op.layer].layout), 4096)
            self._scratch = aligned((self._n_workers, size), np.uint8)
            self._partials = aligned(self.values.layout.partials_shape, np.float32)
        assert self._partials is not None
        return self._scratch, self._partials

    def _columns(self, kernel: Kernel, source: str, other: str, out: str, cap: float = 0.0) -> Call:
        args = np.zeros(1, records.COLUMNS)
        args["source"], args["other"] = address(self.values.buffers[source]), address(self.values.buffers[other])
        args["out"], args["stride"] = self.values.at(out)
        args["n_vectors"] = self.values.buffers[out].shape[1] // LANES
        args["count"], args["cap"] = self.values.count(out), cap
        return Call(kernel, args, frozenset({source, other, out}), frozenset({out}), self._by_columns(out))

    def _take(self, op: TakeOutputs) -> Call:
        args = np.zeros(1, records.TAKE_OUTPUTS)
        args["source"], args["out"] = address(self.values.buffers[op.source]), address(self.values.buffers[op.out])
        args["stride"], args["n_vectors"] = self.values.at(op.out)[1], self.values.buffers[op.out].shape[1] // LANES
        args["outputs"] = self._step.outputs_at
        args["count"] = self._step.n_outputs_at
        taken, out = frozenset({op.source}), frozenset({op.out})
        return Call(catalogue.TAKE_OUTPUTS, args, NOTHING, out, self._by_tokens(op.out), taken)

    def _find_peaks(self) -> Call:
        """The call that finds the highest logits, after the last op."""
        name = self._spec.logits
        args = np.zeros(1, records.PEAKS)
        args["source"], args["stride"] = self.values.at(name)
        args["out"], args["out_stride"] = address(self.peaks), self.peaks.strides[0]
        args["width"], args["count"] = self._spec.n_vocab, self.values.count(name)
        share = f"by {self.peaks.shape[1] // PEAK_LANES} blocks"
        return Call(catalogue.FIND_PEAKS, args, frozenset({name}), frozenset({"peaks"}), share)


def _block_tokens(token_bytes: int, cached_bytes: int) -> int:
    """Whole tiles of tokens whose activations take about so many bytes."""
    return max(TILE, cached_bytes // token_bytes // TILE * TILE)
