"""Muse Glimmer: gated attention with windows, norms on both sides of each branch, and of the embeddings.

Layers with a window are rotated, every fourth has neither. Norms after branches have an epsilon of their own.
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table
from edgeinfer.models.sizes import Sizes, windows

WINDOW_PERIOD = 4
POST_EPSILON = 1e-8


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Muse Glimmer. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    usual = hp.positive("rope.freq_base", 10000.0)
    rope = local_rope_table(hp, g.sizes.rotary_width, usual)
    embed(g)
    g.add(RMSNorm("x", "x", None, g.sizes.width, g.sizes.epsilon))
    for number, window in enumerate(windows(hp, g.sizes, period=WINDOW_PERIOD)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        rotates = None if window is None else rope
        attention(g, rotates, paired=True, window=window, head_norms=True, gate="attn_gate", out="branch")
        _rejoin(g, "post_attention_norm")
        norm(g, "ffn_norm")
        feed_forward(g, out="branch")
        _rejoin(g, "post_ffw_norm")
    return head(g, hp.number("final_logit_softcapping", 0.0) or None, scale=hp.positive("logit_scale"))


def _rejoin(g: ModelGraph, tensor: str) -> None:
    """`rejoin` with the other epsilon."""
    usual, g.sizes = g.sizes, replace(g.sizes, epsilon=POST_EPSILON)
    rejoin(g, tensor)
    g.sizes = usual


ARCHITECTURE = Architecture(build, spelling="muse-glimmer")
