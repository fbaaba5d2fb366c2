"""DeepSeek's first mixture: Llama's layers with experts, shares by softmax, and shared experts; the first is dense.

The text part of DeepSeek-OCR is the same with half-split rotary pairs. Source: DeepSeekMoE (arXiv 2401.06066).
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a DeepSeek mixture, or of a Ling 1. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp, mixture=True))
    feed = Mixture.read_with_shared(hp, g.sizes).after_dense
    return decoder(g, feed, paired=hp.architecture != "deepseek2-ocr")


ARCHITECTURE = Architecture(build, aliases=("bailingmoe", "deepseek2-ocr"))
