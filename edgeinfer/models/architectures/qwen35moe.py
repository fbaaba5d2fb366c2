"""Qwen 3.5's mixtures: Qwen 3.5 with experts as the feed-forward branch, one of them shared by all tokens.

The experts' shares add up to one; the shared expert's share is the sigmoid of its own score. Source: Qwen3.5's model
card and its code in transformers (`qwen3_5_moe`).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.delta_net import head_of_mixture, mixture_with_delta_nets
from edgeinfer.models.hyperparameters import Hyperparameters


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Qwen 3.5 mixture. Raises BadGGUF where tensors or keys are missing."""
    return mixture_with_delta_nets(hp, grouped=False)


ARCHITECTURE = Architecture(build, axes="interleaved", head=head_of_mixture)
