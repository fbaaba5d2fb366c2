"""Calls of attention: rotation, writing new rows to the KV cache, scores and blending.

In: ops of a model, its KV pools and buffers. Out: calls with their argument records. Owns the scratch of attention.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import Limits
from edgeinfer.backends.cpu import catalogue
from edgeinfer.backends.cpu.layout import bfloats, records
from edgeinfer.backends.cpu.layout.attention_records import ATTENTION, STORE_KV
from edgeinfer.backends.cpu.layout.padding import BIAS_REACH, BIASES, LANES, padded, parts_of, tile_tokens
from edgeinfer.backends.cpu.layout.pages import attention_scratch_bytes
from edgeinfer.backends.cpu.layout.summaries import ChoiceLayout
from edgeinfer.backends.cpu.lowering.needs import whole_attention
from edgeinfer.backends.cpu.memory.block_lists import BlockLists
from edgeinfer.backends.cpu.memory.buffers import CpuBuffers
from edgeinfer.backends.cpu.memory.sequences import CpuKV
from edgeinfer.backends.cpu.memory.step import StepRecord
from edgeinfer.backends.cpu.memory.tables import Rotations
from edgeinfer.backends.cpu.workers.tape import NOTHING, Call
from edgeinfer.graph.block_choice import SAMPLED
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.attention import Attention, biases, slopes
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.step import Floats, Int32s
from edgeinfer.jit.memory import address, aligned
from edgeinfer.models.gguf import GGUFFile

NO_WINDOW = 1 << 30
"""More positions than any context; kernels compute with it in 32 bits."""


class AttentionLowering:
    """Makes the calls of one model's attention; owns rotary tables, scratch and partial results."""

    def __init__(
        self,
        spec: ModelSpec,
        file: GGUFFile,
        limits: Limits,
        kv: CpuKV,
        buffers: CpuBuffers,
        step: StepRecord,
        n_workers: int,
        isa_name: str,
    ) -> None:
        self._spec, self._pools, self._buffers = spec, kv.pools, buffers
        self._summaries, self._choice = kv.summaries, ChoiceLayout(spec, limits)
        self.within = False
        """Whether the calls are for passes that state budgets."""
        self._step, self._n_workers, self._isa_name = step, n_workers, isa_name
        self._n_context = limits.n_context
        self.rotations = Rotations(file, limits.n_context, limits.max_tokens)
        self._slopes: dict[tuple[int, float], Floats] = {}
        self._biases: dict[tuple[Weight, bool], Floats] = {}
        self._parts = parts_of(spec)
        self._scratch: NDArray[np.uint8] | None = None
        self._whole: list[NDArray[np.uint8]] = []
        self._partials: Floats | None = None
        self._choice_memory: tuple[NDArray[np.uint8], Int32s, Int32s] | None = None
        self._blocks = BlockLists(spec, limits, n_workers)

    @property
    def resident_bytes(self) -> int:
        """Bytes of tables, partial results and choices."""
        n_bytes = self.rotations.nbytes + (0 if self._partials is None else self._partials.nbytes)
        return n_bytes + self._blocks.nbytes + sum(array.nbytes for array in self._choice_memory or ())

    def rope(self, op: Rope) -> Call:
        cosines, sines = self.rotations.of(op.table, op.sections)
        args = np.zeros(1, records.ROPE)
        args["value"], args["stride"] = self._buffers.at(op.value)
        args["heads"], args["head_stride"] = op.heads, padded(op.head_width) * 4
        args["half"], args["cosines"], args["sines"] = op.table.rotary_width // 2, address(cosines), address(sines)
        args["step"], args["parts"] = self._step.n_tokens_at, self._parts[op.value]
        names = frozenset({op.value})
        return Call(catalogue.ROPE, args, names, names, _by_parts(self._parts[op.value]))

    def store(self, op: StoreKV, alone: bool) -> Call:
        pool = self._pools[op.layer]
        args = np.zeros(1, STORE_KV)
        args["key"], args["key_stride"] = self._buffers.at(op.key)
        args["value"], args["value_stride"] = self._buffers.at(op.value)
        args["key_width"], args["key_head_stride"] = op.key_width, padded(op.key_width) * 4
        args["value_width"], args["value_head_stride"] = op.value_width, padded(op.value_width) * 4
        args["kv_heads"], args["step"] = op.kv_heads, self._step.n_tokens_at
        args["keys"], args["values"] = address(pool.keys), address(pool.values)
        args["bank_pages"], args["bank_bytes"], args["places"] = pool.bank_pages, pool.bank_bytes, address(pool.places)
        args["key_bytes"], args["value_bytes"] = pool.layout.key_bytes, pool.layout.value_bytes
        reads, writes = frozenset({op.key, op.value}), frozenset({f"kv {op.layer}"})
        shared = _by_parts(op.kv_heads) if alone else f"by {op.kv_heads} heads"  # the same split for one token
        return Call(catalogue.store_kv(pool.layout), args, reads, writes, shared)

    def attention(self, op: Attention) -> list[Call]:
        pool = self._pools[op.layer]
        scratch, partials = self._attention_memory()
        args = np.zeros(1, ATTENTION)
        args["query"], args["query_stride"] = self._buffers.at(op.query)
        args["out"], args["out_stride"] = self._buffers.at(op.out)
        args["keys"], args["values"] = address(pool.keys), address(pool.values)
        args["bank_pages"], args["bank_bytes"], args["places"] = pool.bank_pages, pool.bank_bytes, address(pool.places)
        args["key_bytes"], args["value_bytes"] = pool.layout.key_bytes, pool.layout.value_bytes
        args["heads"], args["kv_heads"] = op.heads, op.kv_heads
        args["key_width"], args["key_padded"] = op.key_width, padded(op.key_width)
        args["value_width"], args["value_padded"] = op.value_width, padded(op.value_width)
        args["window"], args["chunked"] = op.window or NO_WINDOW, op.chunked
        args["scratch"], args["scratch_stride"] = address(scratch), scratch.shape[1]
        args["tile_rows"] = self._tile_rows(op)
        args["ahead"], args["full"], args["spans"] = 1, not op.causal, op.spans
        args["sinks"] = 0 if op.sinks is None else address(self._buffers.vector(op.sinks, padded(op.heads)))
        args["slopes"] = 0 if op.alibi is None else address(self._slopes_of(op.heads, op.alibi))
        args["biases"] = 0 if op.relative is None else address(self._biases_of(op, op.relative))
        args["partials"], args["max_chunks"] = address(partials), partials.shape[2]
        args["step"], args["scale"], args["cap"] = self._step.n_tokens_at, op.scale, op.soft_cap or 0.0
        reads = frozenset({op.query, f"kv {op.layer}"})
        own, kept = frozenset({op.out}), frozenset({"attention partials"})
        if self.within and op.window is None:
            return self._chosen(op, args, reads)
        whole = whole_attention(op, pool.layout, self._isa_name)
        if whole is not None:
            scratch = self._whole_memory(op)
            args["scratch"], args["scratch_stride"] = address(scratch), scratch.shape[1]
            return [Call(whole, args, NOTHING, own, "by tokens of heads", reads)]
        kernels = catalogue.attention(pool.layout, self._isa_name)
        lists, calls = self._block_lists(op, args, reads)
        return [
            *calls,
            Call(kernels.by_tile, args, NOTHING, own, "by tiles", reads | lists),
            Call(kernels.by_chunk, args, NOTHING, kept, "by chunks", reads),
            Call(kernels.join, args, NOTHING, own, "by tiles", kept),  # this or the first call writes `out`
        ]

    def _chosen(self, op: Attention, args: NDArray[np.void], reads: frozenset[str]) -> list[Call]:
        """Calls that attend within budgets."""
        summaries, pool = self._summaries[op.layer], self._pools[op.layer]
        assert summaries is not None
        scratch, ranks, lists = self._memory_of_choice()
        args["summaries"], args["summary_stride"] = address(summaries), summaries.strides[0]
        args["ranks"], args["lists"] = address(ranks), address(lists)
        args["choice"], args["choice_stride"] = address(scratch), scratch.shape[1]
        own, kept, choice = (frozenset({name}) for name in (op.out, "attention partials", "attention choice"))
        kernels = catalogue.attention(pool.layout, self._isa_name, chosen=True)
        scoring, choosing = catalogue.choose_chunks(pool.layout)
        block_lists, calls = self._block_lists(op, args, reads)
        return [
            *calls,
            Call(scoring, args, NOTHING, choice, "by parts of lists", frozenset({op.query})),
            Call(choosing, args, NOTHING, choice, "by lists", choice),
            Call(kernels.by_tile, args, NOTHING, own, "by tiles", reads | choice | block_lists),
            Call(kernels.by_chunk, args, NOTHING, kept, "by listed chunks", reads | choice),
            Call(kernels.join, args, NOTHING, own, "by tiles", kept | choice),  # this or `by_tile` writes `out`
        ]

    def _block_lists(
        self, op: Attention, args: NDArray[np.void], reads: frozenset[str]
    ) -> tuple[frozenset[str], list[Call]]:
        """What blocks of prompts choose, as a name that orders calls, and the call that writes it, if they do."""
        if op.block_budget is None:
            return NOTHING, []
        lists = frozenset({"block lists"})
        self._blocks.fill(args, op.block_budget)
        kernel = catalogue.choose_for_blocks(self._pools[op.layer].layout, self._isa_name)
        return lists, [Call(kernel, args, NOTHING, lists, "by blocks", reads)]

    def _whole_memory(self, op: Attention) -> NDArray[np.uint8]:
        """Scratch of each worker for whole texts; calls may share it, larger ones replace it."""
        n_bytes = padded(bfloats.attention_scratch_bytes(op.key_width, op.value_width, self._n_context), 4096)
        if not self._whole or self._whole[-1].shape[1] < n_bytes:
            self._whole.append(aligned((self._n_workers, n_bytes), np.uint8))
        return self._whole[-1]

    def _tile_rows(self, op: Attention) -> int:
        """Query rows that a worker has room for: those of a tile, or of the tokens of a block that choose."""
        return max(tile_tokens(self._spec), 0 if op.block_budget is None else SAMPLED) * op.heads // op.kv_heads

    def _memory_of_choice(self) -> tuple[NDArray[np.uint8], Int32s, Int32s]:
        """Scratch of each worker, ranks and lists, shared by all layers."""
        if self._choice_memory is None:
            scratch = aligned((self._n_workers, padded(self._choice.scratch_bytes, 4096)), np.uint8)
            ranks, lists = (aligned(shape, np.int32) for shape in (self._choice.ranks, self._choice.lists))
            self._choice_memory = scratch, ranks, lists
        return self._choice_memory

    def lists_of(self, n_tiles: int, kv_heads: int) -> Int32s:
        """The lists that the layer which chose last has left: int32[n_tiles * kv_heads, 1 + max_chunks]."""
        lists, n_lists = self._memory_of_choice()[2], n_tiles * kv_heads
        return lists.reshape(-1)[: n_lists * lists.shape[2]].reshape(n_lists, -1)

    def _slopes_of(self, heads: int, alibi: float) -> Floats:
        """The record field `slopes`."""
        if (heads, alibi) not in self._slopes:
            made = aligned((padded(LANES + heads),), np.float32)
            made[:LANES], made[LANES : LANES + heads] = np.arange(LANES), slopes(heads, alibi)
            self._slopes[heads, alibi] = made
        return self._slopes[heads, alibi]

    def _biases_of(self, op: Attention, relative: Weight) -> Floats:
        """The record field `biases`."""
        if (relative, op.causal) not in self._biases:
            table = self._buffers.vector(relative, padded(relative.n_rows))[: relative.n_rows]
            made = aligned((op.heads, BIASES), np.float32)
            distances = np.arange(BIASES) - BIAS_REACH
            made[:] = biases(table, op.heads, distances, causal=op.causal)
            self._biases[relative, op.causal] = made
        return self._biases[relative, op.causal]

    def _attention_memory(self) -> tuple[NDArray[np.uint8], Floats]:
        """Scratch of each worker and the partials of small passes, shared by all layers."""
        if self._scratch is None:
            ops = [op for op in self._spec.ops() if isinstance(op, Attention)]
            needs = [(self._tile_rows(op), self._pools[op.layer].layout) for op in ops]
            size = padded(max(attention_scratch_bytes(*each) for each in needs), 4096)
            self._scratch = aligned((self._n_workers, size), np.uint8)
            self._partials = aligned(self._buffers.layout.partials_shape, np.float32)
        assert self._partials is not None
        return self._scratch, self._partials


def _by_parts(count: int) -> str:
    return f"by tokens and {count} heads"
