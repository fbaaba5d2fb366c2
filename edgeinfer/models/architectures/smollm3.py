"""SmolLM 3: Llama's layers, with no rotary embedding in every fourth."""

from __future__ import annotations

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import rope_table
from edgeinfer.models.sizes import Sizes

NO_ROPE_PERIOD = 4


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a SmolLM 3. Raises BadGGUF where tensors or keys are missing."""
    g = ModelGraph(hp, Sizes.read(hp))
    rope = rope_table(hp, g.sizes.rotary_width)
    return decoder(g, paired=True, rotation=lambda number, _: rope if (number + 1) % NO_ROPE_PERIOD else None)


ARCHITECTURE = Architecture(build)
