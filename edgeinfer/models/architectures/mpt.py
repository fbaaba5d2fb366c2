"""MPT: LayerNorms, often without biases, GELU without a gate, and ALiBi or learned positions; some clip values.

Source: MPT-7B's model card and its code in transformers.
"""

from __future__ import annotations

from functools import partial

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import feed_forward, learned_positions
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an MPT. Raises BadGGUF where tensors or keys are missing, UnsupportedModel for AWQ."""
    if "blk.0.ffn.act.scales" in hp.tensors:
        raise UnsupportedModel("this mpt divides its activations by factors (AWQ); edgeinfer has those that do not")
    has_biases = "blk.0.attn_norm.bias" in hp.tensors
    g = ModelGraph(hp, Sizes.read(hp, norms="layer" if has_biases else "unbiased layer"))
    feed = partial(feed_forward, activation="gelu", gate="none")
    positions = learned_positions(hp, g.sizes) if "position_embd.weight" in hp.tensors else None
    alibi = hp.number("attention.max_alibi_bias", 0.0) or None
    clip = hp.number("attention.clamp_kqv", 0.0) or None
    return decoder(g, feed, rotation=lambda *_: None, positions=positions, alibi=alibi, clip=clip)


ARCHITECTURE = Architecture(build)
