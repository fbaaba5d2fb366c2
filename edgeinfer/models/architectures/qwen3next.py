"""Qwen3-Next: gated delta nets in most layers, gated attention in every fourth, experts and a shared one in all.

Like Qwen 3.5's mixtures, except that value heads sharing a key head are adjacent. Source: Qwen3-Next's model card and
its code in transformers (`qwen3_next`).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.delta_net import head_of_mixture, mixture_with_delta_nets
from edgeinfer.models.hyperparameters import Hyperparameters


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Qwen3-Next. Raises BadGGUF where tensors or keys are missing."""
    return mixture_with_delta_nets(hp, grouped=True)


ARCHITECTURE = Architecture(build, head=head_of_mixture)
