"""Jina Embeddings v2: BERT with ALiBi instead of positions (Press et al., arXiv 2108.12409), mostly with a GELU gate.

The models for code have norms of all query and key heads, and a second norm after attention.
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed, feed_forward
from edgeinfer.models.encoder import norm_embeddings, plain_feed, post_normed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.ranking import without_classifier
from edgeinfer.models.sizes import Sizes

ALIBI = 8.0


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a jina-bert-v2. Raises BadGGUF where tensors or keys are missing."""
    without_classifier(hp, ", and its file lacks the layer before its head (the pooler)")
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    embed(g)
    norm_embeddings(g)
    whole_norms = "blk.0.attn_q_norm.weight" in hp.tensors
    alibi = hp.positive("attention.max_alibi_bias", ALIBI)
    return post_normed(g, _feed, alibi=alibi, whole_norms=whole_norms)


def _feed(g: ModelGraph, source: str) -> None:
    """The gate is a tensor of its own, the first half of ffn_up, or missing."""
    up = g.hp.tensors.get(f"{g.prefix}ffn_up.weight")
    if f"{g.prefix}ffn_gate.weight" in g.hp.tensors:
        feed_forward(g, "gelu", source=source)
    elif up is not None and up.shape[0] == 2 * g.sizes.ffn_width:
        feed_forward(g, "gelu", gate="in ffn_up", source=source)
    else:
        plain_feed(g, source)


ARCHITECTURE = Architecture(build, spelling="jina-bert-v2")
