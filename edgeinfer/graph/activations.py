"""Activation functions in NumPy: SiLU, tanh GELU, ReLU, squared ReLU, sigmoid, GELU, softplus, quick GELU.

ReLU and squared ReLU produce exact zeros. Sigmoid and softplus are used for gates on the attention output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np

from edgeinfer.graph.step import Floats

Activation: TypeAlias = Literal["silu", "gelu_tanh", "relu", "relu2", "sigmoid", "gelu", "softplus", "gelu_quick"]
ExpertActivation: TypeAlias = Literal["silu", "gelu_tanh", "relu", "relu2", "gelu", "swiglu_oai"]
LIMIT, SLOPE = np.float32(7.0), np.float32(1.702)
"""The clamp of `swiglu_oai`, and the factor of that and of `gelu_quick`."""


def silu(gate: Floats) -> Floats:
    """SiLU: x * sigmoid(x)."""
    power: Floats = np.exp(-np.clip(gate, np.float32(-87.0), None))
    return gate / (np.float32(1.0) + power)


def gelu_tanh(gate: Floats) -> Floats:
    """GELU, tanh approximation (Hendrycks & Gimpel, arXiv 1606.08415)."""
    inner = np.float32(0.7978845608028654) * (gate + np.float32(0.044715) * gate**3)
    turned: Floats = np.tanh(inner)
    return np.float32(0.5) * gate * (np.float32(1.0) + turned)


def relu(gate: Floats) -> Floats:
    """ReLU: max(x, 0)."""
    return np.maximum(gate, np.float32(0.0))


def relu2(gate: Floats) -> Floats:
    """Squared ReLU: max(x, 0) squared (So et al., arXiv 2109.08668)."""
    return np.square(relu(gate))


def sigmoid(gate: Floats) -> Floats:
    """Sigmoid: 1 / (1 + e^-x)."""
    power: Floats = np.exp(-np.clip(gate, np.float32(-87.0), None))
    return np.float32(1.0) / (np.float32(1.0) + power)


def gelu(gate: Floats) -> Floats:
    """GELU: x times the normal cumulative distribution function (Hendrycks & Gimpel, arXiv 1606.08415)."""
    shares: Floats = np.vectorize(math.erf, otypes=[np.float32])(gate * np.float32(0.5**0.5))
    return np.float32(0.5) * gate * (np.float32(1.0) + shares)


def softplus(gate: Floats) -> Floats:
    """Softplus: log(1 + e^x)."""
    power: Floats = np.exp(-np.abs(gate))
    return relu(gate) + np.log1p(power)


def gelu_quick(gate: Floats) -> Floats:
    """GELU, sigmoid approximation: x * sigmoid(1.702 x) (Hendrycks & Gimpel, arXiv 1606.08415)."""
    return gate * sigmoid(SLOPE * gate)


ACTIVATIONS: Mapping[Activation, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "silu": silu,
        "gelu_tanh": gelu_tanh,
        "relu": relu,
        "relu2": relu2,
        "sigmoid": sigmoid,
        "gelu": gelu,
        "softplus": softplus,
        "gelu_quick": gelu_quick,
    }
)


def swiglu_oai(gate: Floats, up: Floats) -> Floats:
    """gate * sigmoid(1.702 gate) * (up + 1), with the gate clamped to at most 7 and up to -7..7 (gpt-oss)."""
    gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
    power: Floats = np.exp(-SLOPE * gate)
    joined: Floats = gate / (np.float32(1.0) + power) * (up + np.float32(1.0))
    return joined


def gated(activation: ExpertActivation, gate: Floats, up: Floats) -> Floats:
    """activation(gate) * up, or the activation's own way of combining the two."""
    return swiglu_oai(gate, up) if activation == "swiglu_oai" else ACTIVATIONS[activation](gate) * up


def cut(activated: Floats, threshold: float) -> Floats:
    """Set activated values below the threshold in magnitude, and NaN, to zero. A threshold of 0 changes nothing."""
    if not threshold:
        return activated
    cut: Floats = np.where(np.abs(activated) >= np.float32(threshold), activated, np.float32(0.0))
    return cut
