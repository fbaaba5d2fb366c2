"""How weights and values are laid out in GPU memory: regions of a matrix, shapes of buffers and caches.

In: a ModelSpec, a tensor table and limits. Out: forms, shapes and byte counts. Does not load CUDA, so that a plan can
count.

A matrix is divided into blocks of 32 columns; rows are stored separately, block after block, so that the lanes of a
warp read neighbouring blocks. Integer formats keep codes of 4, 6 or 8 bits; scales are float16, int8 multiples of a
float16 unit per 256 columns, or float32, whichever is the smallest exact form. Float formats keep their bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from edgeinfer.backends.base import Limits
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import PagedKV, Rows
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import BlockFormat, FloatFormat, QuantFormat, format_of
from edgeinfer.settings import KVKind

BLOCK = 32
SUPER_BLOCKS = 8
"""Blocks that share a unit of scales."""
ALIGNMENT = 256
"""Alignment in bytes of the regions of a slab."""
SPLIT_TOKENS = 8
"""Passes of up to this many tokens split attention into chunks of PAGE positions; larger ones have enough blocks."""

Scales: TypeAlias = Literal["half", "multiple", "float"]


def over(count: int, block: int) -> int:
    """Number of blocks of `block` threads for `count` threads."""
    return max(1, -(-count // block))


def padded(width: int, multiple: int = BLOCK) -> int:
    """`count` rounded up to the next multiple."""
    return -(-width // multiple) * multiple


@dataclass(frozen=True, slots=True)
class IntegerForm:
    """Codes of `code_bits`, each plus `low`, with one scale (and minimum) for each `group` of columns.

    6-bit codes are stored as 4 low bits and, in a region of their own, 2 high bits.
    """

    code_bits: Literal[4, 6, 8]
    low: int
    scales: Scales
    group: Literal[16, 32]
    has_minimum: bool

    @property
    def constants(self) -> tuple[int, int, Scales, int, bool]:
        """The constants that kernels for such weights are compiled for."""
        return self.code_bits, self.low, self.scales, self.group, self.has_minimum

    @property
    def numbers_per_block(self) -> int:
        """Scales and minima of a block: all its scales, then all its minima."""
        return BLOCK // self.group * (1 + self.has_minimum)

    def regions(self, n_rows: int, columns: int) -> dict[str, int]:
        """Bytes of each region of a matrix."""
        n_blocks = n_rows * (columns // BLOCK)
        number_bytes = {"half": 2, "multiple": 1, "float": 4}[self.scales]
        found = {"codes": n_blocks * (32 if self.code_bits == 8 else 16)}
        if self.code_bits == 6:
            found["high"] = n_blocks * 8
        found["scales"] = n_blocks * self.numbers_per_block * number_bytes
        if self.scales == "multiple":
            found["units"] = n_rows * n_units(columns) * (1 + self.has_minimum) * 2
        return found


@dataclass(frozen=True, slots=True)
class FloatForm:
    """Unchanged floats, one or two per 32-bit word; rows are padded with zeros to whole blocks."""

    kind: Literal["f16", "bf16", "f32"]

    @property
    def item_bytes(self) -> int:
        return 4 if self.kind == "f32" else 2

    def regions(self, n_rows: int, columns: int) -> dict[str, int]:
        """Bytes of each region of a matrix."""
        return {"codes": n_rows * padded(columns) * self.item_bytes}


Form: TypeAlias = IntegerForm | FloatForm


def n_units(columns: int) -> int:
    """Units of scales in a row."""
    return -(-columns // (BLOCK * SUPER_BLOCKS))


def form_of(form: QuantFormat) -> Form:
    """The form in which a quant format is stored."""
    if isinstance(form, FloatFormat):
        kinds: dict[str, Literal["f16", "bf16"]] = {"F16": "f16", "BF16": "bf16"}
        return FloatForm(kinds.get(form.name, "f32"))
    lowest, highest = form.code_range
    span = highest - lowest
    bits: Literal[4, 6, 8] = 4 if span < 16 else 6 if span < 64 else 8
    group: Literal[16, 32] = 16 if form.group == 16 else 32
    return IntegerForm(bits, 0 if bits == 8 else lowest, _scales(form), group, form.has_minimum)


def _scales(form: BlockFormat) -> Scales:
    """The smallest exact form of a format's scales."""
    if form.f16_scales:
        return "half"
    layout = form.layout
    if layout is None or layout.multiples is None or layout.multiples.halvings is not None:
        return "float"
    if layout.unit != "f16" or form.block_size != BLOCK * SUPER_BLOCKS:
        return "float"
    return "multiple"


def slab_bytes(sizes: list[int]) -> int:
    """Bytes of a slab that holds regions of these sizes."""
    return sum(padded(size, ALIGNMENT) for size in sizes)


@dataclass(frozen=True, slots=True)
class KVForm:
    """Layout of a layer's keys, or of its values: [slot, kv head, head], with padded heads.

    f16: two numbers per word. q8: four codes per word, and a float16 scale for each block of 32.
    """

    kind: KVKind
    kv_heads: int
    head_width: int

    @property
    def padded_width(self) -> int:
        return padded(self.head_width, 8 if self.kind == "f16" else BLOCK)

    @property
    def row_words(self) -> int:
        """32-bit words of a slot."""
        return self.kv_heads * self.padded_width // (2 if self.kind == "f16" else 4)

    @property
    def row_scales(self) -> int:
        """float16 scales of a slot."""
        return 0 if self.kind == "f16" else self.kv_heads * self.padded_width // BLOCK

    @property
    def row_bytes(self) -> int:
        return 4 * self.row_words + 2 * self.row_scales

    @classmethod
    def of(cls, layer: PagedKV, limits: Limits) -> tuple[KVForm, KVForm]:
        """The layouts of a layer's keys and of its values."""
        return cls(limits.kv, layer.kv_heads, layer.key_width), cls(limits.kv, layer.kv_heads, layer.value_width)


class GpuBufferLayout:
    """Shapes of one model's values under given limits."""

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> None:
        self._spec, self._limits = spec, limits
        self._buffers = {buffer.name: buffer for buffer in spec.buffers}
        self.rounded = {
            op.source
            for op in spec.ops()
            if isinstance(op, MatMul) and isinstance(format_of(tensors[op.weight.tensor].ggml_type), BlockFormat)
        }
        """Buffers that are also stored as int8: the inputs of products with integer weights."""

    def is_tokens(self, name: str) -> bool:
        """Whether a buffer has one row per token, not per output."""
        return self._buffers[name].rows is Rows.TOKENS

    def width(self, name: str) -> int:
        return self._buffers[name].width

    def shape(self, name: str) -> tuple[int, int]:
        """Rows and padded width of a buffer of float32."""
        n_rows = self._limits.max_tokens if self.is_tokens(name) else self._limits.max_outputs
        return n_rows, padded(self.width(name))

    def rounded_bytes(self, name: str) -> int:
        """Bytes of the int8 form: 32 codes, a float32 scale and two int32 sums for each block."""
        n_rows, width = self.shape(name)
        return n_rows * width // BLOCK * (32 + 4 + 8)

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest pass."""
        return self._limits.max_tokens

    @property
    def n_chunks(self) -> int:
        """Chunks of PAGE positions in the longest context."""
        return self._limits.n_context // PAGE + 1

    @property
    def partial_floats(self) -> int:
        """Attention partials of small passes: [tokens, heads, chunks, 2 + padded values]; 0 without attention."""
        widest = max((padded(layer.value_width) for layer in self._spec.kv), default=-2)
        return min(SPLIT_TOKENS, self._limits.max_tokens) * self._spec.heads * self.n_chunks * (2 + widest)

    @property
    def step_header(self) -> int:
        """int32 numbers of a step before its tables: six per token, one per output."""
        return 6 * self._limits.max_tokens + self._limits.max_outputs

    @property
    def step_ints(self) -> int:
        """int32 numbers of the largest step: `window_step_at`, plus the separate slots and tables of window layers."""
        n_tokens, has_windows = self._limits.max_tokens, self._limits.windows is not None
        return self.window_step_at + (2 * n_tokens + self._reached_ints if has_windows else 0)

    @property
    def window_step_at(self) -> int:
        """int32 numbers of the largest step without window layers: its header, and a table and a path per token."""
        return self.step_header + self._reached_ints

    @property
    def _reached_ints(self) -> int:
        """int32 numbers of a table and a path for each token."""
        n_tokens = self._limits.max_tokens
        return n_tokens * self.n_chunks + n_tokens * (n_tokens + 1) // 2

    @property
    def total_bytes(self) -> int:
        """Bytes of all buffers, their int8 forms, rotary tables, partials and the step."""
        floats = sum(4 * rows * width for rows, width in map(self.shape, self._buffers))
        tables = {op.table for op in self._spec.ops() if isinstance(op, Rope)}
        rotary = sum(4 * table.rotary_width * self._limits.n_context for table in tables)
        others = rotary + 4 * self.partial_floats + 4 * self.step_ints
        return floats + sum(map(self.rounded_bytes, self.rounded)) + others


def matrix_forms(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> dict[str, Form]:
    """The form of each tensor that a product or an embedding reads."""
    return {
        op.weight.tensor: form_of(format_of(tensors[op.weight.tensor].ggml_type))
        for op in spec.ops()
        if isinstance(op, MatMul | Embed | PositionEmbed)
    }
