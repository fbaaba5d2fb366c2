"""GLM 4: norms before and after each branch, gate and up in one tensor, half of each head rotated in adjacent pairs.

In files of models that see (GLM-4.1V, 4.6V), whose tokens have three positions, the rotated pairs are split in halves.
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
    """The spec of a GLM 4. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    paired = not any(hp.flags("rope.dimension_sections") or ())
    return decoder(g, partial(feed_forward, gate="in ffn_up", out="branch"), paired=paired, post_norms=True)


ARCHITECTURE = Architecture(build, axes="contiguous")
