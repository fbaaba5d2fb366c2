"""Qwen (the first): Qwen 2's layers with query, key and value in one tensor.

The file's feed-forward length is that of gate and up together. Source: Qwen Technical Report (arXiv 2309.16609).
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


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a first Qwen. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    return decoder(g, partial(feed_forward, width=g.sizes.ffn_width // 2))


ARCHITECTURE = Architecture(build)
