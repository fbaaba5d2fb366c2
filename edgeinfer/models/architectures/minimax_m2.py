"""MiniMax M2: Llama's layers with experts; queries and keys are normed over all heads, half of each head is rotated.

Shares are sigmoids that add up to one; experts are chosen with a per-expert bias.
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import SIGMOID_GATING, Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a MiniMax M2. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, gating=SIGMOID_GATING)
    return decoder(g, mixture.add, whole_norms=True)


ARCHITECTURE = Architecture(build, spelling="minimax-m2")
