"""Whole models whose layers have one shape: a norm, attention, a norm, a feed-forward branch.

In: a graph, the feed-forward branch, how the layers differ from Llama's. Out: a ModelSpec. Uses `blocks`; independent
of the families. Raises as the blocks do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypedDict, Unpack

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.blocks import HeadNorms, attention, embed, feed_forward, head, norm, norm_in_place, rejoin
from edgeinfer.models.head_gates import Gate
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import windows
from edgeinfer.models.trained_heads import TrainedHead, next_token_head

Feed: TypeAlias = Callable[[ModelGraph], None]
Rotation: TypeAlias = Callable[[int, int | None], RopeTable | None]
"""The rotary table of a layer, by its number and window; None if it is not rotated."""


class Heads(TypedDict, total=False):
    """Arguments of `attention` that are the same in all layers."""

    paired: bool
    head_norms: HeadNorms
    whole_norms: bool
    query_rope: RopeTable
    scale: float
    alibi: float | None
    clip: float | None
    gate: Gate


def decoder(
    g: ModelGraph,
    feed: Feed = feed_forward,
    *,
    ffn_norm: str = "ffn_norm",
    post_norms: bool = False,
    period: int | None = None,
    first: bool = False,
    rotation: Rotation | None = None,
    positions: Weight | None = None,
    embed_norm: str = "",
    logit_scale: float = 1.0,
    **heads: Unpack[Heads],
) -> ModelSpec:
    """A model with Llama's layers, unless the arguments say otherwise. `heads` are arguments of `attention`.

    `feed` adds the feed-forward branch. `ffn_norm`: the norm that it reads; "": both branches read one norm.
    `post_norms`: finished branches are normed, so `feed` writes to `branch`. Layers have windows if the file says so,
    every `period`-th, or the `first` of each period, has none. `rotation`: None for the same table in all layers; there
    is no rotation with learned `positions` or `alibi`.
    """
    is_rotated = rotation is None and positions is None and heads.get("alibi") is None
    rope = rope_table(g.hp, g.sizes.rotary_width) if is_rotated else None
    embed(g, positions=positions)
    if embed_norm:
        g.prefix = ""
        norm_in_place(g, embed_norm)
    for number, window in enumerate(windows(g.hp, g.sizes, period=period, first=first)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        table = rope if rotation is None else rotation(number, window)
        attention(g, table, window=window, out="branch" if post_norms else "x", **heads)
        if post_norms:
            rejoin(g, "post_attention_norm")
        if ffn_norm:
            norm(g, ffn_norm)
        feed(g)
        if post_norms:
            rejoin(g, "post_ffw_norm")
    return head(g, scale=logit_scale)


def head_of_decoder(g: ModelGraph, feed: Feed, *, ffn_norm: str = "ffn_norm", **heads: Unpack[Heads]) -> TrainedHead:
    """The trained head of such a model, whose block is one more layer. `g`: as for `next_token_head`."""
    rope = rope_table(g.hp, g.sizes.rotary_width)

    def block(g: ModelGraph) -> None:
        norm(g, "attn_norm")
        attention(g, rope, **heads)
        norm(g, ffn_norm)
        feed(g)

    return next_token_head(g, block)
