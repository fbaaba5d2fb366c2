"""ChatGLM 2 and 3, GLM 4 (the first): gate and up in one tensor, half of each head rotated in adjacent pairs.

Source: ChatGLM (arXiv 2406.12793).
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
    """The spec of a ChatGLM. Raises BadGGUF where tensors or keys are missing."""
    return decoder(ModelGraph(hp, Sizes.read(hp)), partial(feed_forward, gate="in ffn_up"), paired=True)


ARCHITECTURE = Architecture(build)
