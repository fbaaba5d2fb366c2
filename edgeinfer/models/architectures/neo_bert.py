"""NeoBERT: Llama's layers without a mask; rotary pairs are adjacent (Le Breton et al., arXiv 2502.19587)."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed, feed_forward
from edgeinfer.models.encoder import pre_normed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.ranking import ranks_or_embeds
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a NeoBERT. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    ranks_or_embeds(g)
    layers = [(rope_table(hp, g.sizes.rotary_width), None)] * g.sizes.n_layers
    embed(g)
    return pre_normed(g, _feed, layers, paired=True, last_norm="enc.output_norm")


def _feed(g: ModelGraph, source: str) -> None:
    feed_forward(g, gate="in ffn_up", source=source)


ARCHITECTURE = Architecture(build, spelling="neo-bert")
