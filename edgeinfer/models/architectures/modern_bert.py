"""ModernBERT: norms before the branches, a gate, windows in two of three layers (Warner et al., arXiv 2412.13663)."""

from __future__ import annotations

from typing import Literal

from edgeinfer.errors import BadGGUF, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import embed, feed_forward
from edgeinfer.models.encoder import norm_embeddings, pre_normed
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.ranking import ranks_or_embeds
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import Sizes

PERIOD = 3
ACTIVATION = "hidden_activation"


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of a ModernBERT. Raises BadGGUF where tensors or keys are missing, UnsupportedModel for a classifier."""
    g = ModelGraph(hp, Sizes.read(hp, norms="unbiased layer"))
    ranks_or_embeds(g, row="mean", bend="gelu")
    width, activation = g.sizes.rotary_width, _activation(hp)
    everywhere, local = rope_table(hp, width), local_rope_table(hp, width)
    layers = [(everywhere if window is None else local, window) for window in _windows(hp, g.sizes.n_layers)]
    embed(g)
    norm_embeddings(g)
    return pre_normed(g, lambda g, source: feed_forward(g, activation, gate="in ffn_up", source=source), layers)


def _activation(hp: Hyperparameters) -> Literal["gelu", "silu"]:
    found = hp.text(ACTIVATION, "gelu")
    if found == "gelu":
        return "gelu"
    if found == "silu":
        return "silu"
    raise UnsupportedModel(f"{hp.architecture}.{ACTIVATION} is {found[:80]!r}; edgeinfer has gelu and silu")


def _windows(hp: Hyperparameters, n_layers: int) -> list[int | None]:
    """The window of each layer: the first layer and every `PERIOD`-th after it have none, unless the file differs.

    Half of the file's number of positions lies before a token, half after it.
    """
    length, key = hp.integer("attention.sliding_window", 0, least=0), "attention.sliding_window_pattern"
    flags = hp.flags(key)
    if flags is None:
        period = hp.integer(key, PERIOD, least=0)
        flags = [not period or layer % period != 0 for layer in range(n_layers)]
    if len(flags) != n_layers:
        raise BadGGUF(f"{hp.architecture}.{key} has {len(flags)} entries for {n_layers} layers")
    return [length // 2 + 1 if flag and length else None for flag in flags]


ARCHITECTURE = Architecture(build, spelling="modern-bert")
