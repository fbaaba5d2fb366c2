"""Jamba: Mamba in most layers, attention without rotation in those with kv heads; experts in layers with a router.

Source: Jamba (AI21, arXiv 2403.19887).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.state_spaces import Mamba


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Jamba. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, hybrid=True))
    mamba = Mamba.read(hp)
    embed(g)
    for number, attends in enumerate(g.sizes.attends):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if attends:
            attention(g, None)
        else:
            mamba.add(g)
        norm(g, "ffn_norm")
        if f"{g.prefix}ffn_gate_inp.weight" in hp.tensors:
            Mixture.read(hp, g.sizes.ffn_width, normalised=False).add(g)
        else:
            feed_forward(g)
    return head(g)


ARCHITECTURE = Architecture(build)
