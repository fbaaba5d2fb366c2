"""Cohere 2 with experts: both branches read one norm, and the mean of routed and shared experts is added.

The first layers are dense and always rotated; of the others only those with windows are, in three of four layers, the
first of four having none. Source: Cohere 2 MoE's code in transformers.
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import feed_forward
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import EXPERTS_MAX, SIGMOID_GATING, Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes

PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of such a Cohere 2. Raises BadGGUF where tensors or keys are missing."""
    has_rms = hp.number("attention.layer_norm_rms_epsilon", 0.0) > 0.0
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, norms="rms" if has_rms else "unbiased layer"))
    rope, n_dense = rope_table(hp, g.sizes.rotary_width), hp.integer("leading_dense_block_count", least=0)
    mixture = _mixture(hp, g.sizes)

    def feed(g: ModelGraph) -> None:
        if g.number < n_dense:
            feed_forward(g)
        else:
            mixture.add(g, 0.5 if mixture.shared_width else 1.0)

    def rotation(number: int, window: int | None) -> RopeTable | None:
        return None if window is None and number >= n_dense else rope

    hp.integer("attention.sliding_window")  # needed to know which layers are rotated
    scale = hp.positive("logit_scale")
    return decoder(g, feed, ffn_norm="", paired=True, period=PERIOD, first=True, rotation=rotation, logit_scale=scale)


def _mixture(hp: Hyperparameters, sizes: Sizes) -> Mixture:
    width = hp.integer("expert_feed_forward_length", sizes.ffn_width)
    shared = width * hp.integer("expert_shared_count", 0, least=0, most=EXPERTS_MAX)
    return Mixture.read(hp, width, normalised=False, shared_width=shared, shared_scored=False, gating=SIGMOID_GATING)


ARCHITECTURE = Architecture(build)
