"""gpt-oss: mixtures of experts with biases everywhere, clamped activations, attention sinks and windows.

Every second layer, starting with the first, attends within a window. The norm before the experts is called
post_attention_norm; shares are a softmax over the chosen experts; rotary pairs are half-split and extended by YaRN.
Source: gpt-oss-120b & gpt-oss-20b Model Card (arXiv 2508.10925).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a gpt-oss. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    rope = rope_table(hp, g.sizes.rotary_width)
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, activation="swiglu_oai")
    embed(g)
    for number, window in enumerate(windows(hp, g.sizes, period=2)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, rope, window=window)
        norm(g, "post_attention_norm")
        mixture.add(g)
    return head(g)


ARCHITECTURE = Architecture(build, spelling="gpt-oss")
