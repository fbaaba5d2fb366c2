"""Command R7B and Command A: Command R with windows in three of four layers and no rotary embedding in the others."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows

WINDOW_PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Cohere 2. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, norms="unbiased layer"))
    rope = rope_table(hp, g.sizes.rotary_width)
    embed(g)
    for number, window in enumerate(windows(hp, g.sizes, period=WINDOW_PERIOD)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, None if window is None else rope, paired=True, window=window)
        feed_forward(g)
    return head(g, scale=hp.positive("logit_scale"))


ARCHITECTURE = Architecture(build)
