"""StableLM: LayerNorms; a part of each head is rotated. The 12B model has parallel branches, so only one norm a layer.

The 12B model also norms queries and keys per head.
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a StableLM. Raises BadGGUF where tensors or keys are missing."""
    g, head_norms = ModelGraph(hp, Sizes.read(hp, norms="layer")), "blk.0.attn_q_norm.weight" in hp.tensors
    return decoder(g, ffn_norm="ffn_norm" if "blk.0.ffn_norm.weight" in hp.tensors else "", head_norms=head_norms)


ARCHITECTURE = Architecture(build)
