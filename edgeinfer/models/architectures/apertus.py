"""Apertus: Llama's layers with RMSNorm per head of queries and keys, and xIELU without a gate.

Each layer's activation has its own shape: four arrays in the file, whose keys do not begin with the family's name.
Source: Apertus (arXiv 2509.14233).
"""

from __future__ import annotations

from math import exp, log1p

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.xielu import XIELU
from edgeinfer.models.architectures import Architecture
from edgeinfer.models.blocks import project
from edgeinfer.models.decoder import decoder
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes


def build(hp: Hyperparameters) -> ModelSpec:
    """The spec of an Apertus. Raises BadGGUF where tensors or keys are missing."""
    return decoder(ModelGraph(hp, Sizes.read(hp)), feed, head_norms=True)


def feed(g: ModelGraph) -> None:
    """down(xielu(up(normed)))."""
    hp, ffn, n_layers = g.hp, g.sizes.ffn_width, g.sizes.n_layers
    rise, fall, slope, edge = (
        hp.numbers(f"xielu.{name}", n_layers)[g.number] for name in ("alpha_p", "alpha_n", "beta", "eps")
    )
    up, hidden, tensor = g.buffer("up", ffn), g.buffer("hidden", ffn), f"{g.prefix}ffn_up"
    weight, bias = hp.matrix(f"{tensor}.weight", (ffn, g.sizes.width)), hp.bias(f"{tensor}.bias", ffn)
    g.add(
        MatMul("normed", up, weight, bias),
        XIELU(up, hidden, ffn, _softplus(rise), slope + _softplus(fall), slope, edge),
    )
    project(g, hidden, "ffn_down", ffn, "x")


def _softplus(value: float) -> float:
    """ln(1 + e^value)."""
    return max(value, 0.0) + log1p(exp(-abs(value)))


ARCHITECTURE = Architecture(build)
