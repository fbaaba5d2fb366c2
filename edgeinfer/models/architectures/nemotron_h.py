"""Nemotron-H: each layer is one of Mamba-2, attention without rotation, or a squared ReLU without a gate.

A layer with a feed-forward width has nothing else; of the others, those with kv heads have attention. Source:
Nemotron-H (arXiv 2504.03624).
"""

from __future__ import annotations

from collections.abc import Callable

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mamba2 import Mamba2
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Nemotron-H. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, hybrid=True))
    return layers(g, lambda g: feed_forward(g, "relu2", gate="none"))


def layers(g: ModelGraph, feed: Callable[[ModelGraph], None]) -> ModelSpec:
    """The whole model; `feed` adds the branch of layers with a feed-forward width."""
    mamba = Mamba2.read(g.hp)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if g.sizes.ffn_width:
            feed(g)
        elif g.sizes.attends[number]:
            attention(g, None)
        else:
            mamba.add(g)
    return head(g)


ARCHITECTURE = Architecture(build)
