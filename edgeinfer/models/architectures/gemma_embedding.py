"""EmbeddingGemma: Gemma 3 whose tokens attend to the whole text, with two projections of the pooled row."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.architectures.gemma3 import layers
from edgeinfer.models.blocks import head
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an EmbeddingGemma. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    layers(g, causal=False)
    width = g.sizes.width
    for tensor in ("dense_2.weight", "dense_3.weight"):
        if tensor in hp.tensors:
            weight = hp.columns_of(tensor, width)
            g.dense(weight)
            width = weight.n_rows
    return head(g)


ARCHITECTURE = Architecture(build, spelling="gemma-embedding")
