"""Granite with windows: Granite's layers, dense or with experts, attention sinks, rotary embedding in some layers.

Source: https://huggingface.co/ibm-granite (Granite SWA).
"""

from __future__ import annotations

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.architectures.granite import attend, begin, end
from edgeinfer.models.blocks import feed_forward, join, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes, windows

ROTATED = "attention.rope_pattern"


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Granite with windows. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    residual = hp.number("residual_scale", 0.0) or 1.0
    mixture = None
    if hp.integer("expert_count", 0, least=0):
        mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, shared_scored=False)
    rotated = hp.flags(ROTATED) or [True] * g.sizes.n_layers
    if len(rotated) != g.sizes.n_layers:
        raise BadGGUF(f"{hp.architecture}.{ROTATED} has {len(rotated)} entries for {g.sizes.n_layers} layers")
    begin(g)
    for number, window in enumerate(windows(hp, g.sizes)):
        g.stage(f"blk.{number}")
        attend(g, residual, window=window, rotates=rotated[number])
        norm(g, "ffn_norm")
        if mixture is not None:
            mixture.add(g, residual)
        else:
            feed_forward(g, out="branch")
            join(g, residual)
    return end(g)


ARCHITECTURE = Architecture(build)
