"""PLaMo 3: norms before and after each branch, RMSNorm per head of queries and keys, windows in seven of eight layers.

Gate and up are one tensor, and so are query, key and value. Layers with windows have a rotary base of their own. Files
leave out ".weight" in the names of the norms after branches.
"""

from __future__ import annotations

from functools import partial

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import feed_forward
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import Sizes

WINDOW_PERIOD = 8


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a PLaMo 3. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    everywhere = rope_table(hp, g.sizes.rotary_width)
    local = local_rope_table(hp, g.sizes.rotary_width)
    return decoder(
        g,
        partial(feed_forward, gate="in ffn_up", out="branch"),
        post_norms=True,
        head_norms=True,
        period=WINDOW_PERIOD,
        rotation=lambda _, window: everywhere if window is None else local,
    )


ARCHITECTURE = Architecture(build)
