"""Laguna: Qwen 3's attention with gated heads, and DeepSeek-V3's mixture of experts; the first layers are dense.

Gates are softplus, one for each head or for each number. Layers may differ in their number of heads. Windows are in
three of four layers, the first of four having none; their rotary embedding is not scaled. Source: Laguna's code in
transformers.
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import SIGMOID_GATING, Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import Sizes

PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Laguna. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    everywhere = rope_table(hp, hp.integer("rope.dimension_count", g.sizes.head_width))
    within = hp.integer("rope.dimension_count_swa", g.sizes.head_width, most=g.sizes.head_width)
    local = local_rope_table(hp, within, everywhere.base)
    width = hp.integer("expert_feed_forward_length")
    mixture = Mixture.read(hp, width, normalised=False, shared_width=width, shared_scored=False, gating=SIGMOID_GATING)
    return decoder(
        g,
        mixture.after_dense,
        head_norms=True,
        gate="softplus",
        period=PERIOD,
        first=True,
        rotation=lambda _, window: everywhere if window is None else local,
    )


ARCHITECTURE = Architecture(build)
