"""K-EXAONE: Llama's layers with RMSNorm per head of queries and keys, and DeepSeek-V3's mixture of experts.

The first layers are dense. Three of four layers have a window, and only those are rotated. Source: K-EXAONE (arXiv
2601.01739).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import Sizes

WINDOW_PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a K-EXAONE. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    hp.integer("attention.sliding_window")  # needed to know which layers are rotated
    rope = (local_rope_table if hp.has("rope.freq_base_swa") else rope_table)(hp, g.sizes.rotary_width)
    mixture = Mixture.read_sigmoid(hp, g.sizes, normalised=False)
    return decoder(
        g,
        mixture.after_dense,
        head_norms=True,
        period=WINDOW_PERIOD,
        rotation=lambda number, window: None if window is None else rope,
    )


ARCHITECTURE = Architecture(build, spelling="exaone-moe")
