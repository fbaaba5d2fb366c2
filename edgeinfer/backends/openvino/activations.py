"""Activations as nodes of an OpenVINO model."""

from __future__ import annotations

from openvino import Node
from openvino import opset13 as op

from edgeinfer.graph.activations import Activation


def activated(activation: Activation, source: Node) -> Node:
    """activation(source)."""
    match activation:
        case "silu":
            return op.swish(source)
        case "gelu_tanh":
            return op.gelu(source, "tanh")
        case "relu":
            return op.relu(source)
        case "gelu":
            return op.gelu(source, "erf")
        case "sigmoid":
            return op.sigmoid(source)
        case "relu2":
            positive = op.relu(source)
            return op.multiply(positive, positive)
