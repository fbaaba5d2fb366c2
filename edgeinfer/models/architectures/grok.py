"""Grok 1: norms before and after each branch, soft-capped scores, and GELU experts whose shares add up to one.

Source: Grok-1's published code.
"""

from __future__ import annotations

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, head, norm, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes

EMBEDDING_SCALE, SCORE_SCALE, LOGIT_SCALE = 6144**0.5, 128**-0.5, 3**-0.5
"""Of the published model; old files do not state them."""
CAP = 30.0


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Grok 1. Raises BadGGUF where tensors or keys are missing, UnsupportedModel for a Grok 2."""
    if hp.has("attention.temperature_length") or "blk.0.ffn_up.weight" in hp.tensors:
        raise UnsupportedModel("this grok has queries that grow or dense branches, as Grok 2; edgeinfer has Grok 1")
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    rope = rope_table(hp, g.sizes.rotary_width)
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, activation="gelu_tanh")
    cap = hp.number("attn_logit_softcapping", CAP) or None
    scale = hp.positive("attention.output_scale", SCORE_SCALE)
    embed(g, hp.positive("embedding_scale", EMBEDDING_SCALE))
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, scale=scale, soft_cap=cap, out="branch")
        rejoin(g, "attn_output_norm")
        norm(g, "ffn_norm")
        mixture.branch(g)
        has_own = f"{g.prefix}layer_output_norm.weight" in hp.tensors
        rejoin(g, "layer_output_norm" if has_own else "post_ffw_norm")
    return head(g, hp.number("final_logit_softcapping", 0.0) or None, scale=hp.positive("logit_scale", LOGIT_SCALE))


ARCHITECTURE = Architecture(build)
