"""Memory of the OpenVINO device, from a header alone.

In: a spec, the table of tensors, limits. Out: a `Footprint` of a model or a fragment. Counted: the constants as passed
to OpenVINO; keys and values of all slots; and as buffers, the copy of all weights that the CPU plugin keeps in its own
order beside the constants, and the inputs and outputs of the largest pass. Not counted: OpenVINO's code and
intermediate results; the spare rows of a growing cache; and the file, whose embedding is read in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from edgeinfer.backends.base import Footprint, Limits
from edgeinfer.backends.openvino.constants import form_of
from edgeinfer.backends.openvino.feeding import signature_of
from edgeinfer.backends.openvino.ops import DEVICE_OPS
from edgeinfer.graph.graph import Fragment, ModelSpec, whole
from edgeinfer.graph.operands import Rows, Weight
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import format_of

FLOAT_BYTES = 4
SCALE_BYTES = 8
"""Scale and zero point of one head's key or value, if stored in 8 bits."""


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Memory of a whole model."""
    return fragment_footprint(whole(spec), tensors, limits)


def fragment_footprint(fragment: Fragment, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Memory of part of a model. Raises UnsupportedModel for a mixture of experts."""
    DEVICE_OPS.check_kinds(fragment.spec.ops())
    per_token = _token_bytes(fragment.spec, limits)
    kv_bytes, weight_bytes = per_token * PAGE * limits.n_pages, _weight_bytes(fragment.spec, tensors)
    return Footprint(weight_bytes, per_token, kv_bytes, weight_bytes + _buffer_bytes(fragment, limits))


def _weight_bytes(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> int:
    """Bytes of all constants; a matrix read by several ops counts once."""
    matrices: set[Weight] = set()
    n_bytes = 0
    for op in spec.ops():
        if isinstance(op, LayerNorm | RMSNorm):
            n_bytes += sum(FLOAT_BYTES * vector.n_rows for vector in op.vectors)
            n_bytes += FLOAT_BYTES * op.width if isinstance(op, RMSNorm) and op.weight is None else 0
        elif isinstance(op, MatMul):
            n_bytes += 0 if op.bias is None else FLOAT_BYTES * op.bias.n_rows
            matrices.add(op.weight)
    for weight in matrices:
        form = form_of(format_of(tensors[weight.tensor].ggml_type))
        n_bytes += form.nbytes(weight.n_rows, weight.columns)
    return n_bytes


def float_layers(spec: ModelSpec) -> frozenset[int]:
    """Float32 caches: those attended to by several layers, or with soft-capped scores. Plain ops read them."""
    ops = [op for op in spec.ops() if isinstance(op, Attention)]
    counts = Counter(op.layer for op in ops)
    return frozenset(op.layer for op in ops if op.soft_cap is not None or counts[op.layer] > 1)


def _token_bytes(spec: ModelSpec, limits: Limits) -> int:
    """Bytes of a token's keys and values."""
    n_bytes, floats = 0, float_layers(spec)
    for number, layer in enumerate(spec.kv):
        if number in floats:
            n_bytes += FLOAT_BYTES * layer.numbers
        elif limits.kv == "q8":
            n_bytes += layer.numbers + 2 * layer.kv_heads * SCALE_BYTES
        else:
            n_bytes += 2 * layer.numbers
    return n_bytes


def _buffer_bytes(fragment: Fragment, limits: Limits) -> int:
    """Bytes of the inputs and outputs of the largest pass."""
    signature, n_rows = signature_of(fragment), limits.max_tokens
    per_token = sum(embed.weight.columns for embed in signature.embeds)
    per_token += sum(2 * table.rotary_width for table in signature.tables)
    per_token += len(signature.windows) * (limits.n_pages * PAGE + n_rows)
    floats = n_rows * per_token
    for name in (*fragment.inputs, *fragment.outputs):
        buffer = fragment.spec.buffer(name)
        floats += buffer.width * (n_rows if buffer.rows is Rows.TOKENS else limits.max_outputs)
    return FLOAT_BYTES * floats
