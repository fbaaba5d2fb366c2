"""Qwen 1.5's and 2's mixtures of experts: Qwen 2 with experts as the feed-forward branch, one of them shared.

The shares of a token do not add up to one; every token also uses the shared expert. Source: Qwen2 Technical Report
(arXiv 2407.10671).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Qwen 2 mixture. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    width = g.sizes.ffn_width // hp.integer("expert_used_count")  # Qwen 1.5's value, for files without the key
    mixture = Mixture.read(hp, width, normalised=False, shared_width=g.sizes.ffn_width)
    return decoder(g, mixture.add)


ARCHITECTURE = Architecture(build)
