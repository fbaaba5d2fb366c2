"""The CPU device: Numba kernels over repacked panels, a worker pool of pinned threads, one tape per model.

`DEVICE` is the public entry point: no module outside this folder imports anything else from it. The memory that a model
takes is computed here from its header alone; the compiler is loaded only by what opens a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from edgeinfer.backends.base import DeviceKind, DeviceOptions, Footprint, Limits
from edgeinfer.backends.cpu.layout.padding import heads_of
from edgeinfer.backends.cpu.layout.panels import UNIT_ROWS, panel_for
from edgeinfer.backends.cpu.layout.summaries import ChoiceLayout
from edgeinfer.backends.cpu.memory.filed_pages import kv_file_bytes
from edgeinfer.backends.cpu.memory.packed_buffers import buffer_bytes
from edgeinfer.backends.cpu.memory.sequences import kv_bytes, slot_bytes, states_bytes
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Weight
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import format_of
from edgeinfer.settings import KVKind

if TYPE_CHECKING:
    from edgeinfer.backends.cpu.device import CpuDevice
    from edgeinfer.backends.offload import WeightOffload


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Bytes of panels, KV pages and buffers. Raises UnsupportedModel for an unknown quant format."""
    heads = heads_of(spec)
    matrices = {(op.weight, heads.get(op.out)) for op in spec.ops() if isinstance(op, MatMul)}
    panels = sum(
        _panel_bytes(weight, cut.count * cut.padded if cut else weight.n_rows, tensors) for weight, cut in matrices
    )
    for op in spec.ops():
        if isinstance(op, Experts):  # all experts are alike
            one = [matrices[0] for matrices in op.all_stacks]
            panels += op.count * sum(_panel_bytes(weight, weight.n_rows, tensors) for weight in one)
    all_bytes, window_bytes, per_token = kv_bytes(spec.kv, limits)
    buffers = buffer_bytes(spec, tensors, limits) + ChoiceLayout(spec, limits).nbytes
    states = states_bytes(spec, limits)
    in_file = kv_file_bytes(spec.kv, limits)
    return Footprint(panels, per_token, all_bytes, buffers, states, window_bytes, slot_bytes(spec), in_file)


def _panel_bytes(weight: Weight, n_rows: int, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of the panels of a matrix with that many rows."""
    panel = panel_for(format_of(tensors[weight.tensor].ggml_type))
    return -(-n_rows // UNIT_ROWS) * 2 * panel.panel_bytes(weight.columns)


def _open(options: DeviceOptions) -> CpuDevice:
    from edgeinfer.backends.cpu.device import open_device  # loads Numba

    return open_device(options)


def _code_sources() -> tuple[Path, ...]:
    from edgeinfer.backends.cpu.catalogue import kernel_sources  # loads LLVM

    return kernel_sources()


def _compile_ahead(kv: KVKind, ggml_types: Sequence[int]) -> None:
    from edgeinfer.backends.cpu.device import compile_usual  # loads Numba

    compile_usual(kv, ggml_types)


def _offload() -> WeightOffload:
    from edgeinfer.backends.cpu.offload import weight_offload  # not needed for models that fit in memory

    return weight_offload(_open)


DEVICE = DeviceKind(
    "cpu",
    "our own engine: Numba kernels on pinned worker threads",
    _open,
    footprint,
    code_sources=_code_sources,
    compile_ahead=_compile_ahead,
    offload=_offload,
    kv_kinds=get_args(KVKind),
    budgets=True,
)
