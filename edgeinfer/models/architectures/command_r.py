"""Command R and Aya: attention and feed-forward network read the same normed input; both are added to the residual.

LayerNorms have no biases; logits are multiplied by the file's scale. Source: Command R's model card and its code in
transformers (`cohere`); the parallel branches are GPT-J's (Wang & Komatsuzaki, 2021).
"""

from __future__ import annotations

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Command R. Raises BadGGUF where tensors or keys are missing, UnsupportedModel for Command R+."""
    if "blk.0.attn_q_norm.weight" in hp.tensors:
        raise UnsupportedModel(
            "this command-r norms every head by a weight of its own, as Command R+ does; edgeinfer has others of it"
        )
    g = ModelGraph(hp, Sizes.read(hp, norms="unbiased layer"))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, paired=True)
        feed_forward(g)
    return head(g, scale=hp.number("logit_scale", 0.0) or 1.0)


ARCHITECTURE = Architecture(build, spelling="command-r")
