"""EXAONE 4: norms after each branch instead of before it, RMSNorm per head of queries and keys.

Models with windows have them in three of four layers, and only those layers are rotated. Source: EXAONE 4.0 (arXiv
2507.11407).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows

WINDOW_PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an EXAONE 4. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    rope, reaches = rope_table(hp, g.sizes.rotary_width), windows(hp, g.sizes, period=WINDOW_PERIOD)
    embed(g)
    for number, window in enumerate(reaches):
        g.stage(f"blk.{number}")
        is_rotated = window is not None or not any(reaches)
        attention(g, rope if is_rotated else None, window=window, head_norms=True, source="x", out="branch")
        rejoin(g, "post_attention_norm")
        feed_forward(g, source="x", out="branch")
        rejoin(g, "post_ffw_norm")
    return head(g)


ARCHITECTURE = Architecture(build)
