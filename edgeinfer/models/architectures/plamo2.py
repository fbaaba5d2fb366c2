"""PLaMo 2: Mamba with steps per head in most layers, attention in those with kv heads; all branches are normed.

Source: PLaMo 2 Technical Report (Preferred Networks, arXiv 2509.04897).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.state_spaces import Mamba


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a PLaMo 2. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, hybrid=True))
    rope, mamba = rope_table(hp, g.sizes.rotary_width), Mamba.read_by_head(hp, g.sizes.width)
    embed(g)
    for number, attends in enumerate(g.sizes.attends):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        if attends:
            attention(g, rope, head_norms=True, out="branch")
        else:
            mamba.add(g, "branch")
        rejoin(g, "post_attention_norm")
        norm(g, "ffn_norm")
        feed_forward(g, gate="in ffn_up", out="branch")
        rejoin(g, "post_ffw_norm")
    return head(g)


ARCHITECTURE = Architecture(build)
