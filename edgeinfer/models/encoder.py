"""Whole models that read texts as a whole, for embeddings: BERT's descendants.

In: a graph after its embedding, the feed-forward branch, how the layers differ. Out: a ModelSpec without logits. Uses
`blocks`; independent of the families. Raises as the blocks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.add_vector import AddVector
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.blocks import attention, feed_forward, hidden_head, norm, norm_in_place
from edgeinfer.models.model_graph import ModelGraph

Feed: TypeAlias = Callable[[ModelGraph, str], None]
"""Adds a layer's feed-forward branch, which reads the given buffer."""
TYPES = "token_types.weight"
FIRST_NORM = "token_embd_norm"


def norm_embeddings(g: ModelGraph) -> None:
    """The first token type, if the file has token types, and the norm of the embeddings."""
    if TYPES in g.hp.tensors:
        g.add(AddVector(g.hp.first_row(TYPES, g.sizes.width), "x", g.sizes.width))
    g.prefix = ""
    norm_in_place(g, FIRST_NORM)


def plain_feed(g: ModelGraph, source: str) -> None:
    """BERT's feed-forward branch: GELU without a gate."""
    feed_forward(g, "gelu", gate="none", source=source)


def post_normed(
    g: ModelGraph,
    feed: Feed = plain_feed,
    *,
    rope: RopeTable | None = None,
    alibi: float | None = None,
    whole_norms: bool = False,
) -> ModelSpec:
    """BERT's layers, which norm after each branch is added. The other arguments are those of `attention`.

    A layer with a second norm after attention adds its input once more before it (Jina's BERT for code).
    """
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        if f"{g.prefix}attn_norm_2.weight" in g.hp.tensors:
            attention(g, rope, causal=False, alibi=alibi, whole_norms=whole_norms, source="x", out="branch")
            g.add(Add("x", "branch", g.sizes.width))
            norm(g, "attn_output_norm", "branch", source="branch")
            g.add(Add("branch", "x", g.sizes.width))
            norm_in_place(g, "attn_norm_2")
        else:
            attention(g, rope, causal=False, alibi=alibi, whole_norms=whole_norms, source="x")
            norm_in_place(g, "attn_output_norm")
        feed(g, "x")
        norm_in_place(g, "layer_output_norm")
    return hidden_head(g)


def pre_normed(
    g: ModelGraph,
    feed: Feed,
    layers: Sequence[tuple[RopeTable, int | None]],
    *,
    paired: bool = False,
    last_norm: str = "output_norm",
) -> ModelSpec:
    """Llama's layers without a mask. `layers`: the rotary table and the window of each; `paired` as in `attention`.

    The first layer has no norm before attention if the file has none, since ModernBERT norms its embeddings.
    """
    for number, (rope, window) in enumerate(layers):
        g.stage(f"blk.{number}")
        source = "normed"
        if number == 0 and f"{g.prefix}attn_norm.weight" not in g.hp.tensors:
            source = "x"
        else:
            norm(g, "attn_norm")
        attention(g, rope, paired=paired, window=window, causal=False, source=source)
        norm(g, "ffn_norm")
        feed(g, "normed")
    g.prefix = ""
    norm_in_place(g, last_norm)
    return hidden_head(g)
