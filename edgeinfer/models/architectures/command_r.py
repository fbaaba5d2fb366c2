"""Command R and Aya: attention and feed-forward network read the same normed input; both are added to the residual.

LayerNorms have no biases; logits are multiplied by the file's scale; Command R+ norms queries and keys per head.
Source: Command R's model card and its code in transformers (`cohere`); the parallel branches are GPT-J's (Wang &
Komatsuzaki, 2021).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Command R. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="unbiased layer"))
    scale, head_norms = hp.number("logit_scale", 0.0) or 1.0, "blk.0.attn_q_norm.weight" in hp.tensors
    return decoder(g, ffn_norm="", paired=True, head_norms=head_norms, logit_scale=scale)


ARCHITECTURE = Architecture(build, spelling="command-r")
