"""Phi 3, 3.5 and 4 (dense): Llama's layers with query-key-value in one tensor, gate and up in another.

Rotary pairs are half-split, over the whole head or part of it; LongRoPE factors and windows are used if the file has
them. Source: Phi-3 Technical Report (arXiv 2404.14219).
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
    """The spec of a Phi 3 model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    return decoder(g, partial(feed_forward, gate="in ffn_up"))


ARCHITECTURE = Architecture(build)
