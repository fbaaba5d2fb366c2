"""The text part of Hunyuan-VL (HunyuanOCR): Hunyuan's layers with a rotary base that grows with the file's alpha."""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of the text part. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    table, alpha, width = rope_table(hp, g.sizes.rotary_width), hp.number("rope.scaling.alpha", 0.0), g.sizes.head_width
    if alpha:
        table = replace(table, base=table.base * alpha ** (width / (width - 2)))
    return decoder(g, rotation=lambda *_: table, head_norms="rotated")


ARCHITECTURE = Architecture(build)
