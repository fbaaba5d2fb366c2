"""GPT-2 and StarCoder: LayerNorms, learned positions, biases in all products, GELU without a gate.

StarCoder has a single head of keys and values. Sources: Radford et al., 2019; StarCoder (arXiv 2305.06161).
"""

from __future__ import annotations

from functools import partial

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import feed_forward, learned_positions
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a GPT-2. Raises BadGGUF where tensors or keys are missing, BadSetting for too long a context."""
    g = ModelGraph(hp, Sizes.read(hp, norms="layer"))
    feed = partial(feed_forward, activation="gelu_tanh", gate="none")
    return decoder(g, feed, positions=learned_positions(hp, g.sizes))


ARCHITECTURE = Architecture(build, aliases=("starcoder",))
