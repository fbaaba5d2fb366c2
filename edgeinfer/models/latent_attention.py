"""Multi-head latent attention: queries, keys and values are computed from narrower latent rows.

In: the file's ranks. Out: ops of a layer in a `ModelGraph`. Keys and values are cached as heads, or, if a file has
their projections apart (`attn_k_b`, `attn_v_b`), as one latent row that all heads share: queries are multiplied by the
first and head outputs by the second, head by head. Uses GGUF's tensor names; independent of the families. Source:
DeepSeek-V2 (arXiv 2405.04434), section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.operands import Every, PagedKV, Weight
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.join_heads import JoinHeads
from edgeinfer.graph.ops.join_parts import JoinParts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.take_part import TakePart
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.blocks import project
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import still_table
from edgeinfer.models.sizes import Sizes

EPSILON = 1e-6
"""Epsilon of the latent rows' norms, from the models' own code; files state only that of the other norms."""

Growth: TypeAlias = tuple[float, int]
"""`growth` and `growth_period` of a RopeTable."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """`kv_rank`: width of the latent row of keys and values; `query_rank`: that of queries, 0 if they have none.

    `rotary_width` columns of each head's key are rotated, in `paired` files by adjacent pairs. `scale` is that of
    scores. `shared`: the latent row is cached.
    """

    query_rank: int
    kv_rank: int
    plain_width: int
    rotary_width: int
    scale: float
    paired: bool = False
    shared: bool = False

    @classmethod
    def read(cls, hp: Hyperparameters, sizes: Sizes, *, paired: bool = False) -> LatentAttention:
        """From the keys of a file. Raises BadGGUF."""
        plain = sizes.head_width - sizes.rotary_width
        if plain <= 0:
            raise BadGGUF(
                f"{hp.architecture}.rope.dimension_count is {sizes.rotary_width} and keys are {sizes.head_width} wide: "
                "no part of a key stays unrotated"
            )
        prefix = f"blk.{sizes.attends.index(True)}."
        has_rank = f"{prefix}attn_q_a.weight" in hp.tensors or f"{prefix}attn_q.weight" not in hp.tensors
        return cls(
            query_rank=hp.integer("attention.q_lora_rank") if has_rank else 0,
            kv_rank=hp.integer("attention.kv_lora_rank"),
            plain_width=plain,
            rotary_width=sizes.rotary_width,
            scale=sizes.head_width**-0.5,
            paired=paired,
            shared=f"{prefix}attn_k_b.weight" in hp.tensors,
        )

    def add(
        self,
        g: ModelGraph,
        rope: RopeTable | None,
        source: str = "normed",
        out: str = "x",
        grown: Growth | None = None,
    ) -> None:
        """A layer's attention, from input to output projection; without `rope` nothing is rotated.

        `grown`: how queries grow with their position.
        """
        self._queries(g, rope, source, grown)
        self._latent_keys(g, rope, source)
        attended = self._attend_shared(g) if self.shared else self._attend_heads(g)
        project(g, attended, "attn_output", g.sizes.attended_width, out)

    def _queries(self, g: ModelGraph, rope: RopeTable | None, source: str, grown: Growth | None) -> None:
        """The plain and the rotated parts of queries."""
        hp, sizes, rank = g.hp, g.sizes, self.query_rank
        columns, tensor = (rank, "attn_q_b") if rank else (sizes.width, "attn_q")
        if rank:
            latent = g.buffer("latent_query", rank)
            g.add(MatMul(source, latent, hp.matrix(f"{g.prefix}attn_q_a.weight", (rank, sizes.width))))
            self._norm(g, latent, "attn_q_a_norm", rank)
            source = latent
        plain, rotary, width = self.plain_width, self.rotary_width, sizes.head_width
        self._part(g, source, (tensor, columns), "plain_query", (0, plain, width))
        self._part(g, source, (tensor, columns), "rotated_query", (plain, rotary, width), paired=self.paired)
        if grown is not None:
            growth, period = grown
            rope = None if rope is None else replace(rope, growth=growth, growth_period=period)
            g.add(Rope("plain_query", sizes.heads, plain, still_table(plain, growth, period)))
        if rope is not None:
            g.add(Rope("rotated_query", sizes.heads, rotary, rope))

    def _latent_keys(self, g: ModelGraph, rope: RopeTable | None, source: str) -> None:
        """The latent row of keys and values, and the rotated part of keys."""
        rank, rotary = self.kv_rank, self.rotary_width
        latent, rotated = g.buffer("latent_key", rank), g.buffer("rotated_key", rotary)
        order = Every(rotary, rank + rotary, self.paired)
        name, shape = f"{g.prefix}attn_kv_a_mqa.weight", (rank + rotary, g.sizes.width)
        g.add(MatMul(source, latent, g.hp.matrix(name, shape, (0, rank))))
        g.add(MatMul(source, rotated, g.hp.matrix(name, shape, (rank, rank + rotary), order)))
        self._norm(g, latent, "attn_kv_a_norm", rank)
        if rope is not None:
            g.add(Rope(rotated, 1, rotary, rope))

    def _attend_heads(self, g: ModelGraph) -> str:
        """Attention to keys and values of heads; returns the buffer with head outputs."""
        sizes, plain, rotary = g.sizes, self.plain_width, self.rotary_width
        heads, widths, both = sizes.heads, (sizes.head_width, sizes.value_width), plain + sizes.value_width
        self._part(g, "latent_key", ("attn_kv_b", self.kv_rank), "plain_key", (0, plain, both))
        self._part(g, "latent_key", ("attn_kv_b", self.kv_rank), "value", (plain, sizes.value_width, both))
        query, key = (g.buffer(name, heads * sizes.head_width) for name in ("query", "key"))
        layer, attended = g.cache(PagedKV(heads, *widths)), g.buffer("attended", sizes.attended_width)
        g.add(
            JoinHeads("plain_query", "rotated_query", query, heads, plain, rotary),
            JoinHeads("plain_key", "rotated_key", key, heads, plain, rotary, shared=True),
            StoreKV(key, "value", layer, heads, *widths),
            Attention(query, attended, layer, heads, heads, *widths, self.scale),
        )
        return attended

    def _attend_shared(self, g: ModelGraph) -> str:
        """Attention of all heads to latent rows; returns the buffer with head outputs."""
        sizes, rank, rotary = g.sizes, self.kv_rank, self.rotary_width
        heads, widths = sizes.heads, (rank + rotary, rank)
        queries = self._by_heads(g, "plain_query", "latent_query_heads", "attn_k_b", (self.plain_width, rank))
        query, key = g.buffer("query", heads * widths[0]), g.buffer("key", widths[0])
        layer, attended = g.cache(PagedKV(1, *widths)), g.buffer("attended_latent", heads * rank)
        g.add(
            JoinHeads(queries, "rotated_query", query, heads, rank, rotary),
            JoinHeads("latent_key", "rotated_key", key, 1, rank, rotary),
            StoreKV(key, "latent_key", layer, 1, *widths),
            Attention(query, attended, layer, heads, 1, *widths, self.scale),
        )
        return self._by_heads(g, attended, "attended", "attn_v_b", (rank, sizes.value_width))

    def _by_heads(self, g: ModelGraph, source: str, out: str, tensor: str, widths: tuple[int, int]) -> str:
        """Multiply each head of a buffer by its own matrix, which turns the first width into the second."""
        heads, (columns, n_rows) = g.sizes.heads, widths
        weights = g.hp.stacked(f"{g.prefix}{tensor}.weight", heads, (n_rows, columns))
        taken = [g.buffer(f"{source} of head {head}", columns) for head in range(heads)]
        made = tuple(g.buffer(f"{out} of head {head}", n_rows) for head in range(heads))
        joined = g.buffer(out, heads * n_rows)
        g.add(*(TakePart(source, part, heads, head, columns) for head, part in enumerate(taken)))
        g.add(*(MatMul(*each) for each in zip(taken, made, weights, strict=True)))
        g.add(JoinParts(made, joined, n_rows))
        return joined

    def _norm(self, g: ModelGraph, latent: str, tensor: str, rank: int) -> None:
        """Norm a latent row before it is projected again."""
        g.add(RMSNorm(latent, latent, g.hp.vector(f"{g.prefix}{tensor}.weight", rank), rank, EPSILON))

    def _part(
        self,
        g: ModelGraph,
        source: str,
        matrix: tuple[str, int],
        out: str,
        rows: tuple[int, int, int],
        *,
        paired: bool = False,
    ) -> None:
        """Rows (first, count, out of how many) of each head in a projection, given as its tensor and columns."""
        (tensor, columns), (first, width, step) = matrix, rows
        total = g.sizes.heads * step
        span, order = (first, total - step + first + width), Every(width, step, paired)
        weight: Weight = g.hp.matrix(f"{g.prefix}{tensor}.weight", (total, columns), span, order)
        g.add(MatMul(source, g.buffer(out, g.sizes.heads * width), weight))


def latent_sizes(hp: Hyperparameters, *, hybrid: bool = False, guessing: bool = False) -> Sizes:
    """The sizes of heads as they are multiplied; files with cached latent rows state these under their own keys."""
    sizes = Sizes.read(hp, mixture=True, hybrid=hybrid, guessing=guessing)
    return sizes.with_heads(
        hp.integer("attention.key_length_mla", sizes.head_width),
        hp.integer("attention.value_length_mla", sizes.value_width),
    )
