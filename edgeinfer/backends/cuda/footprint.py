"""GPU memory that a model takes, counted from the header alone.

In: a ModelSpec, the tensor table, limits. Out: the exact bytes of a lane whose weights all stay in GPU memory. Does not
load CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeinfer.backends.base import Footprint, Limits
from edgeinfer.backends.cuda.layout import GpuBufferLayout, KVForm, matrix_forms, slab_bytes
from edgeinfer.backends.cuda.ops import DEVICE_OPS
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import PagedKV, Weight
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import TensorInfo


def weight_regions(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> dict[Weight, dict[str, int]]:
    """Bytes of each region of each weight, in order of first use."""
    forms = matrix_forms(spec, tensors)
    found: dict[Weight, dict[str, int]] = {}
    for weight in spec.weights():
        form = forms.get(weight.tensor)
        found[weight] = {"values": 4 * weight.n_rows} if form is None else form.regions(weight.n_rows, weight.columns)
    return found


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Bytes of weights, KV pages and buffers. Raises UnsupportedModel for an unsupported quant format."""
    DEVICE_OPS.check_kinds(spec.ops())
    weights = sum(slab_bytes(list(regions.values())) for regions in weight_regions(spec, tensors).values())
    kept = limits.windows
    limited = sum(_row_bytes(layer, limits) for layer in spec.kv if kept is not None and kept.limit(layer))
    per_position = sum(_row_bytes(layer, limits) for layer in spec.kv) - limited
    window_bytes = 0 if kept is None else limited * PAGE * kept.n_pages
    buffers = GpuBufferLayout(spec, tensors, limits).total_bytes
    kv_bytes = per_position * PAGE * limits.n_pages + window_bytes
    return Footprint(weights, per_position, kv_bytes, buffers, window_bytes=window_bytes)


def _row_bytes(layer: PagedKV, limits: Limits) -> int:
    """Bytes of the keys and values of a token."""
    return sum(form.row_bytes for form in KVForm.of(layer, limits))
