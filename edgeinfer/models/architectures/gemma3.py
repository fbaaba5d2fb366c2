"""Gemma 3 (text): Gemma 2 with norms of each query and key head in place of the attention's soft cap.

Five layers with a window and a separate rotary base alternate with one without. The file's norm weights are stored as 1
+ weight. Source: Gemma 3 Technical Report (arXiv 2503.19786).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, head, norm, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import Sizes, windows
from edgeinfer.models.variants import WholeRows

LAYERS_OF_27B = 62
IMAGE = WholeRows(256)
"""Rows of an image see each other in all layers."""


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Gemma 3 text model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    layers(g)
    return head(g, hp.number("final_logit_softcapping", 0.0) or None)


def layers(g: ModelGraph, *, causal: bool = True) -> None:
    """Embedding and layers. Without `causal`, half of a window lies before a token and half after it."""
    hp = g.hp
    sizes = g.sizes
    # Files do not store the query scale. It is 1 / sqrt(head width), except 1 / sqrt(width / heads) for the 27B model.
    scale = (sizes.width / sizes.heads if sizes.n_layers == LAYERS_OF_27B else sizes.head_width) ** -0.5
    everywhere = rope_table(hp, sizes.rotary_width, default_base=1_000_000.0)
    local = local_rope_table(hp, sizes.rotary_width)
    embed(g, sizes.width**0.5)
    for number, window in enumerate(windows(hp, sizes, period=6)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        rope = everywhere if window is None else local
        window = window // 2 + 1 if window is not None and not causal else window
        attention(g, rope, window=window, scale=scale, head_norms=True, causal=causal, out="branch")
        rejoin(g, "post_attention_norm")
        norm(g, "ffn_norm")
        feed_forward(g, "gelu_tanh", out="branch")
        rejoin(g, "post_ffw_norm")


ARCHITECTURE = Architecture(build, whole=lambda hp: IMAGE)
