"""Arcee's AFM: Llama's layers with squared ReLU and no gate."""

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
    """The spec of an AFM. Raises BadGGUF where tensors or keys are missing."""
    return decoder(ModelGraph(hp, Sizes.read(hp)), partial(feed_forward, activation="relu2", gate="none"), paired=True)


ARCHITECTURE = Architecture(build)
