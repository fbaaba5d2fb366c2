"""Qwen 1.5, 2 and 2.5: Llama's layers with biases on query, key and value, and half-split rotary pairs.

EXAONE 3, openPangu Embedded and the text part of PaddleOCR-VL are of the same shape: openPangu with one more bias, the
others without biases.
"""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a Qwen 2 model. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    return decoder(g)


ARCHITECTURE = Architecture(build, aliases=("qwen2vl", "exaone", "pangu-embedded", "paddleocr"), axes="contiguous")
