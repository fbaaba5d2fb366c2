"""How a model's values lie in the CPU device's memory: widths padded to vectors, heads padded one by one.

In: a ModelSpec, a tensor table and limits. Out: shapes and byte counts. Loads no compiler, so that a plan can use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeinfer.backends.base import PEAK_BLOCK, PEAK_LANES, Limits
from edgeinfer.backends.cpu.layout.expert_panels import expert_panels, expert_sizes
from edgeinfer.backends.cpu.layout.rounded import RECORD_BYTES
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Rows, Weight
from edgeinfer.graph.ops.add_scaled import AddScaled
from edgeinfer.graph.ops.attention import FARTHEST, Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import BlockFormat, format_of

LANES = 16
BLOCK = 32
CHUNK = PAGE
"""Positions whose attention is one partial result; partials are joined in order."""
CHUNK_PAGES = CHUNK // PAGE
SCORE_BYTES = 4 * CHUNK
"""Bytes of the scores of a query row over a chunk."""
BIAS_REACH = FARTHEST + LANES - 1
"""Biases of distances are held for this far on both sides, so that a vector beyond `FARTHEST` has a place to read."""
BIASES = 2 * (BIAS_REACH + 1)
SPLIT_TOKENS = 8
"""Passes of up to this many tokens split attention by chunks of positions, larger ones by tiles of tokens."""
TILE_ROWS = 48
"""Approximate number of query rows of an attention tile."""
WIDEST_TURNED = 1024
"""Most columns of a cached key that can turn."""
EMBEDDING_BYTES = 1 << 22
"""Bytes of decoded embedding rows that are kept."""


def padded(width: int, multiple: int = LANES) -> int:
    """The next multiple."""
    return -(-width // multiple) * multiple


def embedding_rows(weight: Weight) -> int:
    """Number of decoded embedding rows that are kept."""
    return max(1, min(weight.n_rows, EMBEDDING_BYTES // (4 * weight.columns)))


def learned_positions(spec: ModelSpec, limits: Limits) -> Weight | None:
    """The rows of learned positions that a lane's contexts reach, None if positions are not learned."""
    found = [op.weight for op in spec.ops() if isinstance(op, PositionEmbed)]
    if not found:
        return None
    return replace(found[0], stop=min(found[0].stop, found[0].start + limits.n_context))


@dataclass(frozen=True, slots=True)
class PaddedHeads:
    """How a buffer is cut into heads: each takes `padded` of the row's floats, of which it uses `width`."""

    count: int
    width: int

    @property
    def padded(self) -> int:
        return padded(self.width)

    def places(self, n_rows: int) -> NDArray[np.int64]:
        """Where the first `n_rows` rows of all heads lie: int64[n_rows]."""
        rows = np.arange(n_rows)
        found: NDArray[np.int64] = rows // self.width * self.padded + rows % self.width
        return found


def heads_of(spec: ModelSpec) -> dict[str, PaddedHeads]:
    """The buffers that are cut into heads, as attention and rotation use them, and what is added to them."""
    found: dict[str, PaddedHeads] = {}
    for op in spec.ops():
        if isinstance(op, Attention):
            found[op.query] = PaddedHeads(op.heads, op.key_width)
        elif isinstance(op, StoreKV):
            found[op.key], found[op.value] = (
                PaddedHeads(op.kv_heads, op.key_width),
                PaddedHeads(op.kv_heads, op.value_width),
            )
        elif isinstance(op, Rope):
            found[op.value] = PaddedHeads(op.heads, op.head_width)
    return found | {op.source: found[op.out] for op in spec.ops() if isinstance(op, AddScaled) and op.out in found}


def tile_tokens(spec: ModelSpec) -> int:
    """Tokens of an attention tile, for the layers with the most query heads per kv head."""
    repeats = [op.heads // op.kv_heads for op in spec.ops() if isinstance(op, Attention)]
    return max(1, TILE_ROWS // max(repeats, default=1))


def parts_of(spec: ModelSpec) -> dict[str, int]:
    """The number of parts in which workers share the heads of a buffer, common to all layers that use it."""
    found: dict[str, int] = {}
    for op in spec.ops():
        if isinstance(op, Attention | StoreKV):
            for name in (op.query,) if isinstance(op, Attention) else (op.key, op.value):
                found[name] = math.gcd(found.get(name, 0), op.kv_heads)
        elif isinstance(op, Rope):
            found[op.value] = math.gcd(found.get(op.value, 0), op.heads)
    return found


class BufferLayout:
    """Shapes of the buffers of one model under given limits."""

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> None:
        self._spec, self._limits = spec, limits
        self._heads = heads_of(spec)
        self._buffers = {buffer.name: buffer for buffer in spec.buffers}
        self.places = {
            buffer.name: buffer.place
            for buffer in spec.buffers
            if buffer.place and self._is_dense(buffer.name) and self._is_dense(buffer.place)
        }
        """Buffers that use another's memory; neither has padded rows, so none reads the other's data as padding."""
        self.rounded = {
            op.source
            for op in spec.ops()
            if isinstance(op, MatMul) and isinstance(format_of(tensors[op.weight.tensor].ggml_type), BlockFormat)
        }
        mixtures = [(op, expert_panels(op, tensors)) for op in spec.ops() if isinstance(op, Experts)]
        self.rounded |= {op.source for op, panels in mixtures if panels.rounds_source}
        self.expert_sizes = expert_sizes(mixtures, limits.max_tokens)
        """Sizes of the rows of experts' pairs. `rounded`: buffers with an int8 form, the inputs of integer products."""

    def shape(self, name: str) -> tuple[int, int]:
        """Rows and padded width of a buffer of float32."""
        buffer, heads = self._buffers[name], self._heads.get(name)
        n_rows = self._limits.max_tokens if buffer.rows is Rows.TOKENS else self._limits.max_outputs
        return n_rows, padded(heads.count * heads.padded if heads else buffer.width, BLOCK)

    def _is_dense(self, name: str) -> bool:
        """Whether rows of a buffer, and of its int8 form, have no padding."""
        heads, width = self._heads.get(name), self._buffers[name].width
        return width % (2 * BLOCK) == 0 and (heads is None or heads.padded == heads.width)

    def place(self, name: str) -> str:
        """The buffer whose memory a buffer uses: itself, unless it shares that of another one."""
        return self.places.get(name, name)

    @property
    def float_bytes(self) -> dict[str, int]:
        """Bytes of the memory of buffers, by place."""
        return self._by_place({name: 4 * math.prod(self.shape(name)) for name in self._buffers})

    @property
    def int8_bytes(self) -> dict[str, int]:
        """Bytes of the memory of int8 forms, by place."""
        return self._by_place({name: self.rounded_bytes(name) for name in self.rounded})

    def _by_place(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The largest size at each place."""
        found: dict[str, int] = {}
        for name, size in sizes.items():
            found[self.place(name)] = max(size, found.get(self.place(name), 0))
        return found

    def n_blocks(self, name: str) -> int:
        """Blocks of 32 columns of a buffer's int8 form that hold data."""
        return self._buffers[name].width // BLOCK

    def padded_blocks(self, name: str) -> int:
        """Blocks of a buffer's int8 form, which come in pairs."""
        return padded(self.n_blocks(name), 2)

    def rounded_bytes(self, name: str) -> int:
        """Bytes of the int8 form of a buffer."""
        return self.shape(name)[0] * self.padded_blocks(name) * RECORD_BYTES

    @property
    def partials_shape(self) -> tuple[int, int, int, int]:
        """Attention partials of small passes: float32[tokens, heads, chunks, 16 + largest value_padded]."""
        width = LANES + padded(max((layer.value_width for layer in self._spec.kv), default=self._spec.head_width))
        return SPLIT_TOKENS, self._spec.heads, self._limits.n_context // CHUNK + 1, width

    @property
    def peaks_shape(self) -> tuple[int, int]:
        """Peaks of logits, as `base.Peaked` says: float32[outputs, blocks * PEAK_LANES]."""
        return self._limits.max_outputs, -(-self._spec.output_width // PEAK_BLOCK) * PEAK_LANES

    @property
    def total_bytes(self) -> int:
        """Bytes of all buffers, int8 forms, rotary tables, partials, peaks, rows of experts and kept rows."""
        tables = {(op.table, op.sections is not None) for op in self._spec.ops() if isinstance(op, Rope)}
        limits = self._limits
        rotary = sum(
            4 * table.rotary_width * (limits.n_context + (limits.max_tokens if has_axes else 0))
            for table, has_axes in tables
        )
        tokens, heads, pages, width = self.partials_shape
        others = rotary + 4 * tokens * heads * pages * width + 4 * math.prod(self.peaks_shape)
        embeddings = [op.weight for op in self._spec.ops() if isinstance(op, Embed | TokenRows)]
        others += sum(4 * embedding_rows(weight) * weight.columns for weight in embeddings)
        learned = learned_positions(self._spec, self._limits)
        others += 0 if learned is None else 4 * learned.n_rows * learned.columns
        kept = sum(self.float_bytes.values()) + sum(self.int8_bytes.values())
        return kept + others + self.expert_sizes.total_bytes
