"""Qwen 1.5, 2 and 2.5: Llama's layers with biases on query, key and value, and half-split rotary pairs."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import decoder, feed_forward
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Qwen 2 model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    return decoder(g, feed_forward)


ARCHITECTURE = Architecture(build, aliases=("qwen2vl",), axes="contiguous")
