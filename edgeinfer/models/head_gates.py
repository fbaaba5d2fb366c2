"""Gates of attention's head outputs: a product of what attention reads, activated.

In: a graph, the kind of gate. Out: ops that multiply the head outputs. Uses GGUF's tensor names; independent of the
families. Raises BadGGUF for missing tensors or wrong shapes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from edgeinfer.graph.operands import Every, Weight
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.gated_heads import GatedHeads
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.model_graph import ModelGraph

Gate: TypeAlias = Literal["attn_q", "attn_gate", "softplus"]
"""The tensor with the gate: its rows follow those of each query head, or form a matrix of their own. The latter is
activated by a sigmoid, or else by softplus, which may also be one gate for each head."""


def gate_heads(g: ModelGraph, gate: Gate, source: str, attended: str) -> None:
    """Multiply the head outputs in `attended` by their gates."""
    sizes = g.sizes
    if gate == "softplus" and _is_per_head(g):
        scores = g.buffer("gate_of_heads", sizes.heads)
        weight = g.hp.matrix(f"{g.prefix}attn_gate.weight", (sizes.heads, sizes.width))
        g.add(MatMul(source, scores, weight), GatedHeads(scores, attended, sizes.heads, sizes.value_width))
        return
    scores = g.buffer("attention_gate", sizes.attended_width, heads=sizes.heads)
    g.add(
        MatMul(source, scores, _rows(g, gate)),
        GatedAct(scores, attended, attended, sizes.attended_width, "softplus" if gate == "softplus" else "sigmoid"),
    )


def _is_per_head(g: ModelGraph) -> bool:
    """Whether the file has a gate for each head, not for each number of each head."""
    info = g.hp.tensors.get(f"{g.prefix}attn_gate.weight")
    return info is not None and info.shape[0] == g.sizes.heads


def _rows(g: ModelGraph, gate: Gate) -> Weight:
    """The rows of a gate of all numbers."""
    hp, sizes = g.hp, g.sizes
    if gate != "attn_q":
        return hp.matrix(f"{g.prefix}attn_gate.weight", (sizes.attended_width, sizes.width))
    both, others = sizes.query_width + sizes.attended_width, sizes.key_width + sizes.values_width
    is_fused = f"{g.prefix}attn_qkv.weight" in hp.tensors
    tensor, total = ("attn_qkv", both + others) if is_fused else ("attn_q", both)
    rows, order = (sizes.head_width, both), Every(sizes.value_width, sizes.head_width + sizes.value_width)
    return hp.matrix(f"{g.prefix}{tensor}.weight", (total, sizes.width), rows, order)
