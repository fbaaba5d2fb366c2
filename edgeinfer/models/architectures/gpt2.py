"""GPT-2: learned positions, LayerNorms, biases everywhere, GELU without a gate; one tensor of queries, keys and values.

Source: Radford et al., Language Models are Unsupervised Multitask Learners (2019).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, learned_positions, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a GPT-2. Raises BadGGUF where tensors or keys are missing, BadSetting for too long a context."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    embed(g, positions=learned_positions(hp, g.sizes))
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, None)
        norm(g, "ffn_norm")
        feed_forward(g, "gelu_tanh", gate="none")
    return head(g)


ARCHITECTURE = Architecture(build)
