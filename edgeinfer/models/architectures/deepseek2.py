"""DeepSeek-V2 and V3, and models of their shape (GLM-4.7-Flash, Kimi K2, Moonlight): latent attention and a mixture.

The first layers are dense. V2 has shares by softmax; V3 by sigmoid, chosen with a bias; both from the best groups.
Files have the projections of keys and values apart; older ones have them in one, and state other widths. Models without
experts state as many dense layers as they have. Sources: DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3 (arXiv
2412.19437).
"""

from __future__ import annotations

from dataclasses import replace
from math import log

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed, feed_forward, head, norm
from edgeinfer.models.decoder import Feed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.latent_attention import Growth, LatentAttention, latent_sizes
from edgeinfer.models.mixture import SIGMOID_GATING, SOFTMAX_GATING, Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.trained_heads import TrainedHead, next_token_head

GLM_VOCABULARY = 154880
"""Early files of GLM-4.7-Flash do not state that shares are sigmoids; this is how llama.cpp tells them."""


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a DeepSeek-V2 or V3. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, latent_sizes(hp))
    layer = _layer(g)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        layer(g)
    return head(g)


def guess(hp: Hyperparameters) -> TrainedHead:
    """The head that guesses one token more: one more layer."""
    g = ModelGraph(hp, latent_sizes(hp, guessing=True))
    return next_token_head(g, _layer(g))


def _layer(g: ModelGraph) -> Feed:
    """What adds the ops of a layer."""
    hp = g.hp
    rope, growth = yarn_table(hp, g.sizes)
    attention = LatentAttention.read(hp, g.sizes, paired=True)
    attention = replace(attention, scale=attention.scale * growth * growth)
    grown = _grown(hp)
    is_dense = hp.integer("leading_dense_block_count", 0, least=0) >= g.sizes.n_layers
    feed = feed_forward if is_dense else _mixture(hp, g.sizes).after_dense

    def add(g: ModelGraph) -> None:
        norm(g, "attn_norm")
        attention.add(g, rope, grown=grown)
        norm(g, "ffn_norm")
        feed(g)

    return add


def yarn_table(hp: Hyperparameters, sizes: Sizes) -> tuple[RopeTable, float]:
    """The rotary table, and what YaRN multiplies queries and keys by beside it.

    `yarn_log_multiplier` is a tenth of `mscale_all_dim`, which here scales scores in place of the rotated parts.
    """
    rope, multiplier = rope_table(hp, sizes.rotary_width), hp.number("rope.scaling.yarn_log_multiplier", 0.0)
    if rope.scaling != "yarn" or not multiplier or rope.factor <= 1.0:
        return rope, 1.0
    magnitude = hp.positive("rope.scaling.yarn_attn_factor", 1.0) * hp.positive("rope.scaling.attn_factor", 1.0)
    return replace(rope, magnitude=magnitude), 1.0 + multiplier * log(rope.factor)


def _mixture(hp: Hyperparameters, sizes: Sizes) -> Mixture:
    """The mixture; DeepSeek-V2 rates a group by its best expert."""
    has_sigmoids = sizes.n_vocab == GLM_VOCABULARY or hp.architecture == "glm-dsa"
    gating = SIGMOID_GATING if has_sigmoids else SOFTMAX_GATING
    mixture = Mixture.read_with_shared(hp, sizes, gating=gating)
    return replace(mixture, rated_by=1) if mixture.scoring == "softmax" else mixture


def _grown(hp: Hyperparameters) -> Growth | None:
    """How queries grow with their position (Mistral 4), None in a context too short for that."""
    usual = hp.integer("rope.scaling.original_context_length", hp.integer("context_length"))
    growth, period = hp.number("attention.temperature_scale", 0.0), hp.integer("attention.temperature_length", usual)
    return (growth, period) if growth and hp.n_context > period else None


ARCHITECTURE = Architecture(build, aliases=("mistral4",), head=guess)
