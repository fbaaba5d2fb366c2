"""OLMo 2 and 3: norms follow each branch instead of preceding it; RMSNorm over all query and over all key heads.

OLMo 3 has windows in three of four layers; the rotary embedding of these is not scaled. Sources: 2 OLMo 2 Furious
(arXiv 2501.00656), Olmo 3 (arXiv 2512.13961).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes, windows

WINDOW_PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an OLMo 2 or 3. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    everywhere = rope_table(hp, g.sizes.rotary_width)
    local = RopeTable(hp.positive("rope.freq_base_swa", everywhere.base), g.sizes.rotary_width)
    embed(g)
    for number, window in enumerate(windows(hp, g.sizes, period=WINDOW_PERIOD)):
        g.stage(f"blk.{number}")
        rope = everywhere if window is None else local
        attention(g, rope, window=window, whole_norms=True, source="x", out="branch")
        rejoin(g, "post_attention_norm")
        feed_forward(g, source="x", out="branch")
        rejoin(g, "post_ffw_norm")
    return head(g)


ARCHITECTURE = Architecture(build)
