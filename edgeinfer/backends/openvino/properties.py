"""Properties that a graph is compiled with.

In: a spec, its tensors, limits and options. Out: OpenVINO properties by name. Knows nothing of graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.openvino.constants import form_of
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import BlockFormat, format_of
from edgeinfer.models.spec import ModelSpec
from edgeinfer.ops import MatMul

Properties = dict[str, str | int | bool]


def properties_of(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits, options: DeviceOptions, target: str
) -> Properties:
    """How a spec is compiled for a target.

    OpenVINO rounds activations to 8 bits in groups of the size that is asked for, wherever a weight's scales have the
    same group; others are multiplied in floats. So the group is that of most weights.
    """
    found: Properties = {"PERFORMANCE_HINT": "LATENCY"}
    if target != "CPU":
        return found
    found["KV_CACHE_PRECISION"] = "u8" if limits.kv == "int8" else "f16"
    found["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _common_group(spec, tensors)
    if _needs_float32(spec, tensors):
        found["INFERENCE_PRECISION_HINT"] = "f32"
    n_threads = options.n_workers or (len(options.cores) if options.cores else None)
    if n_threads is not None:
        found["INFERENCE_NUM_THREADS"] = n_threads
    found["ENABLE_CPU_PINNING"] = options.pins
    return found


def _common_group(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> int:
    """The group that most weights of products have; 0 without any."""
    counts: Counter[int] = Counter()
    for op in spec.ops():
        if isinstance(op, MatMul):
            form = format_of(tensors[op.weight.tensor].ggml_type)
            if isinstance(form, BlockFormat):
                counts[form.group] += op.weight.n_rows * op.weight.columns
    return counts.most_common(1)[0][0] if counts else 0


def _needs_float32(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> bool:
    """Whether values between products must stay float32 where the processor would like bfloat16 better.

    Products with 8-bit weights lose more than their own rounding to bfloat16 (4e-2 of the logits of SmolLM2 in Q8_0
    where float32 loses 1.6e-2), those with 4-bit weights hardly anything; float32 files are meant to be exact.
    """
    counts: Counter[str] = Counter()
    for op in spec.ops():
        if isinstance(op, MatMul):
            form = form_of(format_of(tensors[op.weight.tensor].ggml_type))
            counts[form.code] += op.weight.n_rows * op.weight.columns
    return counts["u8"] + counts["f32"] > sum(counts.values()) / 2
