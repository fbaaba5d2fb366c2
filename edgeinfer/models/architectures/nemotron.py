"""Nemotron (Minitron) and Jais 2: LayerNorms, squared ReLU without a gate; Nemotron rotates a part of each head.

Files of Nemotron store norm weights as 1 + weight. Source: Nemotron-4 (arXiv 2402.16819).
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
    """The spec of a Nemotron. Raises BadGGUF where tensors or keys are missing."""
    return decoder(
        ModelGraph(hp, Sizes.read(hp, norms="layer")), partial(feed_forward, activation="relu2", gate="none")
    )


ARCHITECTURE = Architecture(build, aliases=("jais2",))
