"""Mellum 2: Qwen 3's mixtures with windows in three of four layers, whose rotary embedding is not scaled."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import Sizes

WINDOW_PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Mellum 2. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    everywhere = rope_table(hp, g.sizes.rotary_width)
    local = local_rope_table(hp, g.sizes.rotary_width, everywhere.base)
    return decoder(
        g,
        Mixture.read(hp, g.sizes.ffn_width, normalised=True).add,
        head_norms=True,
        period=WINDOW_PERIOD,
        rotation=lambda _, window: everywhere if window is None else local,
    )


ARCHITECTURE = Architecture(build)
