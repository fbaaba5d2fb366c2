"""SmallThinker: Llama's layers with ReLU experts, which are chosen by what the layer reads, before its attention.

Larger models have windows in three of four layers, the first of four having none; only layers with windows are rotated.
Shares add up to one. Source: SmallThinker (arXiv 2507.20984).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.take_part import TakePart
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows

PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a SmallThinker. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read(hp, g.sizes.ffn_width, normalised=True, activation="relu")
    rope, width = rope_table(hp, g.sizes.rotary_width), g.sizes.width
    reaches = windows(hp, g.sizes, period=PERIOD, first=True)
    embed(g)
    for number, window in enumerate(reaches):
        g.stage(f"blk.{number}")
        read = g.buffer("layer_input", width)
        g.add(TakePart("x", read, 1, 0, width))
        norm(g, "attn_norm")
        attention(g, rope if window is not None or not any(reaches) else None, window=window)
        norm(g, "ffn_norm")
        mixture.branch(g, scored=read)
        g.add(Add("branch", "x", width))
    return head(g)


ARCHITECTURE = Architecture(build)
