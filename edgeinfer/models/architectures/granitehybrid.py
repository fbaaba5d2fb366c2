"""Granite 4 hybrids: Mamba-2 in most layers, attention in those with kv heads; Granite's scales, experts in some files.

Without rotary embedding, as the files say (`rope.scaling.finetuned`); Bamba's have it. Source: IBM Granite 4.0 (2025).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.architectures.granite import attend, begin, end
from edgeinfer.models.blocks import feed_forward, join, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mamba2 import Mamba2
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Granite hybrid. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, hybrid=True))
    has_experts = hp.integer("expert_count", 0, least=0) > 0
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, shared_scored=False) if has_experts else None
    mamba, residual = Mamba2.read(hp), hp.number("residual_scale", 0.0) or 1.0
    begin(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        if g.sizes.attends[number]:
            attend(g, residual)
        else:
            norm(g, "attn_norm")
            mamba.add(g, "branch")
            join(g, residual)
        norm(g, "ffn_norm")
        if mixture is not None:
            mixture.add(g, residual)
        else:
            feed_forward(g, out="branch")
            join(g, residual)
    return end(g)


ARCHITECTURE = Architecture(build)
