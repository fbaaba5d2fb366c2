"""StarCoder 2 and CodeShell: LayerNorms, biases in all products, GELU without a gate. Source: arXiv 2402.19173."""

from __future__ import annotations

from functools import partial

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import feed_forward
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a StarCoder 2. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    return decoder(g, partial(feed_forward, activation="gelu_tanh", gate="none"))


ARCHITECTURE = Architecture(build, aliases=("codeshell",))
