"""Llama and models of its shape: Llama 1-3, Mistral, SmolLM, TinyLlama, InternLM 2, XVERSE, Mixtral's mixtures.

RMSNorm, rotary embedding over adjacent pairs, grouped-query attention, SwiGLU (Touvron et al., arXiv 2302.13971).
Mistral adds an attention window in all layers (Jiang et al., arXiv 2310.06825), Mixtral adds experts whose shares add
up to one per token (Jiang et al., arXiv 2401.04088).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import feed_forward
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a llama-shaped model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    is_mixture = hp.integer("expert_count", 0, least=0) > 0
    feed = Mixture.read(hp, g.sizes.ffn_width, normalised=True).add if is_mixture else feed_forward
    return decoder(g, feed, paired=True)


ARCHITECTURE = Architecture(build, aliases=("mistral", "smollm", "internlm2", "xverse"))
