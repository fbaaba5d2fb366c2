"""How much memory the CPU device takes for a model, computed from the header alone.

In: a ModelSpec, the tensor table, limits. Out: exactly the bytes that a `CpuLane` then holds. Loads no compiler.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeinfer.backends.base import Footprint, Limits
from edgeinfer.backends.cpu.layout.padding import BufferLayout, heads_of
from edgeinfer.backends.cpu.layout.panels import UNIT_ROWS, panel_for
from edgeinfer.backends.cpu.memory.kv import kv_bytes
from edgeinfer.backends.cpu.memory.states import slot_bytes, states_bytes
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import format_of


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Bytes of panels, KV pages and buffers. Raises UnsupportedModel for an unknown quant format."""
    heads = heads_of(spec)
    matrices = {(op.weight, heads.get(op.out)) for op in spec.ops() if isinstance(op, MatMul)}
    panels = sum(
        _panel_bytes(weight, cut.count * cut.padded if cut else weight.n_rows, tensors) for weight, cut in matrices
    )
    for op in spec.ops():
        if isinstance(op, Experts):  # all experts are alike
            one = (op.gate[0], op.up[0], op.down[0])
            panels += len(op.gate) * sum(_panel_bytes(weight, weight.n_rows, tensors) for weight in one)
    all_bytes, window_bytes, per_token = kv_bytes(spec.kv, limits)
    buffers = BufferLayout(spec, tensors, limits).total_bytes
    states = states_bytes(spec, limits)
    return Footprint(panels, per_token, all_bytes, buffers, states, window_bytes, slot_bytes(spec))


def _panel_bytes(weight: Weight, n_rows: int, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of the panels of a matrix with that many rows."""
    panel = panel_for(format_of(tensors[weight.tensor].ggml_type))
    return -(-n_rows // UNIT_ROWS) * 2 * panel.panel_bytes(weight.columns)
