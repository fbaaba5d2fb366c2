"""Qwen 3.5, 3.6 and 3.8: gated delta nets in most layers, gated attention in every fourth.

Queries and keys of attention are normed per head and partly rotated; each head's output is multiplied by its own
sigmoid gate. The norm before the feed-forward network is called post_attention_norm. Source: Qwen3.5's model card and
its code in transformers (`qwen3_5`).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import feed_forward
from edgeinfer.models.delta_net import DeltaNet, head_of_hybrid, hybrid
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.trained_heads import TrainedHead


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a dense Qwen 3.5. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    return hybrid(g, DeltaNet.read(hp), feed_forward)


def guess(hp: Hyperparameters) -> TrainedHead:
    """The head of a dense Qwen 3.5 that guesses one token more."""
    return head_of_hybrid(ModelGraph(hp, Sizes.read(hp, guessing=True)), feed_forward)


ARCHITECTURE = Architecture(build, axes="interleaved", head=guess)
