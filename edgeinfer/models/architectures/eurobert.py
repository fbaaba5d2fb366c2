"""EuroBERT (and Jina Embeddings v5 nano): Llama's layers without a mask (Boizard et al., arXiv 2503.05500).

Llama models that embed (llama-embed-nemotron) are the same with other rotary pairs.
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed, feed_forward
from edgeinfer.models.encoder import pre_normed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.ranking import without_classifier
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a EuroBERT. Raises BadGGUF where tensors or keys are missing."""
    without_classifier(hp)
    g = ModelGraph(hp, Sizes.read(hp))
    layers = [(rope_table(hp, g.sizes.rotary_width), None)] * g.sizes.n_layers
    embed(g)
    is_llama = hp.architecture == "llama-embed"
    return pre_normed(g, lambda g, source: feed_forward(g, source=source), layers, paired=is_llama)


ARCHITECTURE = Architecture(build, aliases=("llama-embed",))
