"""Granite's mixtures of experts: Granite with experts, whose shares add up to one, as the feed-forward branch.

Some have an additional shared expert used by every token. Source: Granite 3.0 Language Models (IBM, 2024).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.architectures.granite import attend, begin, end
from edgeinfer.models.blocks import norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Granite mixture. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, shared_scored=False)
    residual = hp.number("residual_scale", 0.0) or 1.0
    begin(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        attend(g, residual)
        norm(g, "ffn_norm")
        mixture.add(g, residual)
    return end(g)


ARCHITECTURE = Architecture(build)
