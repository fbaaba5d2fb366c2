"""GLM 4.5, 4.6 and 4.7: mixtures of experts plus a shared expert used by every token; the first layers are dense.

Shares are sigmoids of scores; experts are chosen by share plus a per-expert bias, from the best groups if there are
several. Part of each head is rotated, with half-split pairs; larger models norm queries and keys per head. The norm
before the feed-forward branch is called post_attention_norm. Source: GLM-4.5 (arXiv 2508.06471).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder, head_of_decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.trained_heads import TrainedHead, head_prefix


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a GLM 4.5. Raises BadGGUF where tensors or keys are missing."""
    g, head_norms = ModelGraph(hp, Sizes.read(hp, mixture=True)), "blk.0.attn_q_norm.weight" in hp.tensors
    feed = Mixture.read_sigmoid(hp, g.sizes, normalised=False).after_dense
    return decoder(g, feed, ffn_norm="post_attention_norm", head_norms=head_norms)


def guess(hp: Hyperparameters) -> TrainedHead:
    """The head of a GLM 4.5 that guesses one token more: a layer with experts."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True, guessing=True))
    feed = Mixture.read_sigmoid(hp, g.sizes, normalised=False).after_dense
    head_norms = f"{head_prefix(hp)}attn_q_norm.weight" in hp.tensors
    return head_of_decoder(g, feed, ffn_norm="post_attention_norm", head_norms=head_norms)


ARCHITECTURE = Architecture(build, axes="contiguous", head=guess)
