"""Command R7B and Command A: Command R with windows in three of four layers and no rotary embedding in the others."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes

WINDOW_PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Cohere 2. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="unbiased layer"))
    rope, scale = rope_table(hp, g.sizes.rotary_width), hp.positive("logit_scale")
    return decoder(
        g,
        ffn_norm="",
        paired=True,
        period=WINDOW_PERIOD,
        rotation=lambda _, window: None if window is None else rope,
        logit_scale=scale,
    )


ARCHITECTURE = Architecture(build)
