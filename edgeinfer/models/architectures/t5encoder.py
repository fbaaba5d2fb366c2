"""T5's encoder (sentence-t5, gtr-t5): RMSNorms before the branches, scores raised by learned biases of distances.

ReLU without a gate, or (T5 1.1, Flan) a GELU gate. Source: T5 (Raffel et al., arXiv 1910.10683).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import attention, embed, feed_forward, hidden_head, norm, norm_in_place
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes

BUCKETS_MAX = 256


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a T5 encoder. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    n_buckets = hp.integer("attention.relative_buckets_count", least=4, most=BUCKETS_MAX)
    relative = hp.table("enc.blk.0.attn_rel_b.weight", (n_buckets, g.sizes.heads))
    embed(g)
    for number in range(g.sizes.n_layers):
        g.stage(f"blk.{number}", f"enc.blk.{number}.")
        relative = _own(g, n_buckets) or relative
        norm(g, "attn_norm")
        attention(g, None, scale=1.0, causal=False, relative=relative)
        norm(g, "ffn_norm")
        if f"{g.prefix}ffn_gate.weight" in hp.tensors:
            feed_forward(g, "gelu_tanh")
        else:
            feed_forward(g, "relu", gate="none")
    g.prefix = ""
    norm_in_place(g, "enc.output_norm")
    return hidden_head(g)


def _own(g: ModelGraph, n_buckets: int) -> Weight | None:
    """A layer's own biases; in T5 only the first layer has some, in UMT5 each."""
    name = f"{g.prefix}attn_rel_b.weight"
    return g.hp.table(name, (n_buckets, g.sizes.heads)) if name in g.hp.tensors else None


ARCHITECTURE = Architecture(build)
