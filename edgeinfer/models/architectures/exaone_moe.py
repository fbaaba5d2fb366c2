"""K-EXAONE: Llama's layers with RMSNorm per head of queries and keys, and DeepSeek-V3's mixture of experts.

The first layers are dense. Three of four layers have a window, and only those are rotated. Source: K-EXAONE (arXiv
2601.01739).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, head, norm
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import Sizes, windows

WINDOW_PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a K-EXAONE. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    mixture = Mixture.read_sigmoid(hp, g.sizes, normalised=False)
    has_own = hp.has("rope.freq_base_swa")
    rope = (local_rope_table if has_own else rope_table)(hp, g.sizes.rotary_width)
    hp.integer("attention.sliding_window")  # needed to know which layers are rotated
    embed(g)
    for number, window in enumerate(windows(hp, g.sizes, period=WINDOW_PERIOD)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        attention(g, None if window is None else rope, window=window, head_norms=True)
        norm(g, "ffn_norm")
        mixture.after_dense(g)
    return head(g)


ARCHITECTURE = Architecture(build, spelling="exaone-moe")
