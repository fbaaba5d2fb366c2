"""Multi-head latent attention: queries, keys and values are computed from narrower latent rows.

In: the file's ranks. Out: ops of a layer in a `ModelGraph`. Keys and values are cached as heads, not as latent rows.
Uses GGUF's tensor names; independent of the families. Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.operands import Every, PagedKV
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.join_heads import JoinHeads
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.blocks import project
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes

EPSILON = 1e-6
"""Epsilon of the latent rows' norms, from the models' own code; files state only that of the other norms."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """`query_rank` and `kv_rank`: widths of the latent rows. `rotary_width` columns of each head's key are rotated."""

    query_rank: int
    kv_rank: int
    plain_width: int
    rotary_width: int

    @classmethod
    def read(cls, hp: Hyperparameters, sizes: Sizes) -> LatentAttention:
        """From the keys of a file. Raises BadGGUF."""
        plain = sizes.head_width - sizes.rotary_width
        if plain <= 0:
            raise BadGGUF(
                f"{hp.architecture}.rope.dimension_count is {sizes.rotary_width} and keys are {sizes.head_width} wide: "
                "no part of a key stays unrotated"
            )
        query_rank, kv_rank = hp.integer("attention.q_lora_rank"), hp.integer("attention.kv_lora_rank")
        return cls(query_rank, kv_rank, plain, sizes.rotary_width)

    def add(self, g: ModelGraph, rope: RopeTable, source: str = "normed", out: str = "x") -> None:
        """A layer's attention, from input to output projection."""
        sizes = g.sizes
        heads, widths = sizes.heads, (sizes.head_width, sizes.value_width)
        self._queries(g, rope, source)
        self._keys_and_values(g, rope, source)
        layer, attended = g.cache(PagedKV(heads, *widths)), g.buffer("attended", sizes.attended_width)
        g.add(
            StoreKV("key", "value", layer, heads, *widths),
            Attention("query", attended, layer, heads, heads, *widths, sizes.head_width**-0.5),
        )
        project(g, attended, "attn_output", sizes.attended_width, out)

    def _queries(self, g: ModelGraph, rope: RopeTable, source: str) -> None:
        hp, sizes = g.hp, g.sizes
        latent, plain, rotary = g.buffer("latent_query", self.query_rank), self.plain_width, self.rotary_width
        g.add(MatMul(source, latent, hp.matrix(f"{g.prefix}attn_q_a.weight", (self.query_rank, sizes.width))))
        self._norm(g, latent, "attn_q_a_norm", self.query_rank)
        self._part(g, latent, "attn_q_b", "plain_query", (0, plain, sizes.head_width))
        self._part(g, latent, "attn_q_b", "rotated_query", (plain, rotary, sizes.head_width))
        query = g.buffer("query", sizes.query_width)
        g.add(
            Rope("rotated_query", sizes.heads, rotary, rope),
            JoinHeads("plain_query", "rotated_query", query, sizes.heads, plain, rotary),
        )

    def _keys_and_values(self, g: ModelGraph, rope: RopeTable, source: str) -> None:
        hp, sizes = g.hp, g.sizes
        rank, plain, rotary = self.kv_rank, self.plain_width, self.rotary_width
        latent, shared = g.buffer("latent_key", rank), g.buffer("rotated_key", rotary)
        for buffer, rows in ((latent, (0, rank)), (shared, (rank, rank + rotary))):
            weight = hp.matrix(f"{g.prefix}attn_kv_a_mqa.weight", (rank + rotary, sizes.width), rows)
            g.add(MatMul(source, buffer, weight))
        self._norm(g, latent, "attn_kv_a_norm", rank)
        self._part(g, latent, "attn_kv_b", "plain_key", (0, plain, plain + sizes.value_width))
        self._part(g, latent, "attn_kv_b", "value", (plain, sizes.value_width, plain + sizes.value_width))
        key = g.buffer("key", sizes.key_width)
        g.add(
            Rope(shared, 1, rotary, rope),
            JoinHeads("plain_key", shared, key, sizes.heads, plain, rotary, shared=True),
        )

    def _norm(self, g: ModelGraph, latent: str, tensor: str, rank: int) -> None:
        """Norm a latent row before it is projected again."""
        g.add(RMSNorm(latent, latent, g.hp.vector(f"{g.prefix}{tensor}.weight", rank), rank, EPSILON))

    def _part(self, g: ModelGraph, latent: str, tensor: str, out: str, rows: tuple[int, int, int]) -> None:
        """Rows (first, count, out of how many) of each head in a projection of a latent row."""
        first, width, step = rows
        total, columns = g.sizes.heads * step, self.query_rank if tensor == "attn_q_b" else self.kv_rank
        last = total - step + first + width
        weight = g.hp.matrix(f"{g.prefix}{tensor}.weight", (total, columns), (first, last), Every(width, step))
        g.add(MatMul(latent, g.buffer(out, g.sizes.heads * width), weight))
