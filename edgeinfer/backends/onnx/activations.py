"""Activations as nodes of an ONNX graph."""

from __future__ import annotations

from edgeinfer.backends.onnx.graph import OnnxGraph
from edgeinfer.graph.activations import Activation


def activated(graph: OnnxGraph, activation: Activation, gate: str) -> str:
    """The name of the tensor activation(gate)."""
    match activation:
        case "silu":
            return graph.contrib("QuickGelu", (gate,), alpha=1.0)
        case "gelu_tanh":
            return graph.node("Gelu", (gate,), approximate="tanh")
        case "relu":
            return graph.node("Relu", (gate,))
        case "gelu":
            return graph.node("Gelu", (gate,))
        case "sigmoid":
            return graph.node("Sigmoid", (gate,))
        case "relu2":
            positive = graph.node("Relu", (gate,))
            return graph.node("Mul", (positive, positive))
