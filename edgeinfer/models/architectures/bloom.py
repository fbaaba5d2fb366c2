"""BLOOM: LayerNorms, also of the embeddings, biases in all products, GELU without a gate, ALiBi.

Source: BLOOM (arXiv 2211.05100).
"""

from __future__ import annotations

from functools import partial

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import feed_forward
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes

ALIBI = 8.0


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a BLOOM. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    feed = partial(feed_forward, activation="gelu_tanh", gate="none")
    return decoder(g, feed, embed_norm="token_embd_norm", alibi=ALIBI)


ARCHITECTURE = Architecture(build)
