"""BERT and similar models (bge, e5, MiniLM, XLM-RoBERTa): texts read as a whole, for embeddings.

The input is the normed sum of the embeddings of the token, of its position and of the first token type. Layers norm
after each branch is added; GELU. DistilBERT, recognised by having no token types, has a ReLU in its ranking head.
Source: BERT (Devlin et al., arXiv 1810.04805).
"""

from __future__ import annotations

from edgeinfer.errors import BadSetting, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed
from edgeinfer.models.encoder import TYPES, norm_embeddings, post_normed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.ranking import ranks_or_embeds
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a BERT. Raises BadGGUF, UnsupportedModel for a classifier, BadSetting for too long a context."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    sizes, has_head = g.sizes, ranks_or_embeds(g, bend="tanh" if TYPES in hp.tensors else "relu")
    if has_head and TYPES in hp.tensors and hp.columns_of(TYPES, sizes.width).n_rows > 1:
        pooled = "" if "cls.weight" in hp.tensors else ", and its file lacks the layer before its head (the pooler)"
        raise UnsupportedModel(
            f"this reranker uses token types to separate query and document{pooled}; edgeinfer has those that do "
            "not, as XLM-RoBERTa's (bge-reranker-v2-m3, jina-reranker-v2)"
        )
    if hp.n_context > sizes.n_context_trained:
        raise BadSetting(
            f"this model knows positions up to {sizes.n_context_trained}, so a context of {hp.n_context} tokens is "
            f"impossible; choose {sizes.n_context_trained} or less"
        )
    embed(g, positions=hp.matrix("position_embd.weight", (sizes.n_context_trained, sizes.width)))
    norm_embeddings(g)
    return post_normed(g)


ARCHITECTURE = Architecture(build)
