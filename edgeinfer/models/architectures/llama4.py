"""Llama 4 (Scout, Maverick): experts of which each token has one, in all layers or in every second one.

What an expert reads is multiplied by its share, a sigmoid; every token also has a shared expert. Three of four layers
attend within chunks of positions and are rotated, mostly with norms without weights; queries of the others grow with
their position. Source: Llama 4's code in transformers.
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import HeadNorms, attention, embed, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import SIGMOID_GATING, Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table, still_table
from edgeinfer.models.sizes import Sizes, windows

PERIOD, CHUNK = 4, 8192
GROWTH = 0.1
"""Queries grow by this times the logarithm of how many chunks they have passed; files do not state it."""
MAVERICK_EXPERTS = 128
"""The model with that many has no head norms; this is how llama.cpp tells it, for files do not state it."""


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Llama 4. Raises BadGGUF where tensors or keys are missing, UnsupportedModel without chunks."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    rope, grown, mixture = rope_table(hp, g.sizes.rotary_width), _grown(hp, g.sizes), _mixture(hp, g.sizes)
    norms: HeadNorms = "bare" if mixture.count != MAVERICK_EXPERTS else False
    reaches = windows(hp, g.sizes, period=PERIOD, default=CHUNK)
    if not any(reaches):
        raise UnsupportedModel("this llama4 has no chunks, and its file does not say which layers are rotated")
    embed(g)
    for number, window in enumerate(reaches):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if window is None:
            attention(g, None, query_rope=grown, paired=True)
        else:
            reach = window if window < hp.n_context else None
            attention(g, rope, paired=True, window=reach, chunked=reach is not None, head_norms=norms)
        norm(g, "ffn_norm")
        mixture.after_dense(g)
    return head(g)


def _grown(hp: Hyperparameters, sizes: Sizes) -> RopeTable | None:
    """The table of queries that are not rotated, None in a context too short for them to grow."""
    growth, period = hp.number("attention.temperature_scale", GROWTH), hp.integer("attention.temperature_length", CHUNK)
    return still_table(sizes.head_width, growth, period, start=1) if growth and hp.n_context >= period else None


def _mixture(hp: Hyperparameters, sizes: Sizes) -> Mixture:
    width = hp.integer("expert_feed_forward_length")
    mixture = Mixture.read(hp, width, normalised=False, shared_width=width, shared_scored=False, gating=SIGMOID_GATING)
    return replace(mixture, scales_source=True)


ARCHITECTURE = Architecture(build)
