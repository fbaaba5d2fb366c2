"""OpenVINO itself, started once per process: its `Core`, the properties of compiled graphs, the cores of its threads.

In: a spec, its tensors, limits and options. Out: the `Core`, and OpenVINO properties by name. Releasing a `Core` frees
memory that is still in use (OpenVINO 2026.4: the heap is damaged once two of them were opened and closed in turn), so
all devices share one, which is never released. Independent of graphs.

OpenVINO has no property that pins threads to chosen cores. Threads of this process that are not Python's and did not
exist when the device was opened are assumed to be OpenVINO's; they are pinned after they start, which happens during
the first steps. Works on Linux only; elsewhere the system places OpenVINO's threads.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import openvino as ov

from edgeinfer.backends.base import DeviceOptions, Limits
from edgeinfer.backends.openvino.constants import CodeType, form_of
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.models.quants import format_of
from edgeinfer.process import allowed_cpus, require_cpus


@cache
def core() -> ov.Core:
    """The runtime. Raises RuntimeError if it does not start."""
    return ov.Core()


Properties = dict[str, str | int | bool]

TOO_NARROW = 32
"""Gates with at most this many columns are kept out of bfloat16.

On processors with AMX, OpenVINO (2026.3, 2026.4) fuses a feed-forward network of plain weights with GELU into one op,
which computes wrong numbers or crashes with a bad address if it is that narrow.
"""


def properties_of(
    spec: ModelSpec,
    tensors: Mapping[str, TensorInfo],
    limits: Limits,
    options: DeviceOptions,
    target: str,
    has_bf16: bool,
) -> Properties:
    """How a spec is compiled for a target. `has_bf16`: the processor computes with bfloat16, and OpenVINO allows it.

    OpenVINO can round activations to 8 bits in groups of a requested size, for weights whose scales have the same group
    size; products with other weights are computed in floats. So the group size is that of most weights. This is not
    done for 8-bit weights with bfloat16: both roundings together lose more than the sum of each alone (4e-2 of the
    logits of SmolLM2 in Q8_0, where each alone loses 1.6e-2). Float32 files are meant to be exact.
    """
    found: Properties = {"PERFORMANCE_HINT": "LATENCY"}
    if target != "CPU":
        return found
    code, group = _common_form(spec, tensors)
    found["KV_CACHE_PRECISION"] = "u8" if limits.kv == "q8" else "f16"
    found["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0 if code == "u8" and has_bf16 else group
    if code == "f32" or (has_bf16 and code in ("f16", "bf16") and _has_narrow_gates(spec)):
        found["INFERENCE_PRECISION_HINT"] = "f32"
    n_threads = options.n_workers or (len(options.cores) if options.cores else None)
    if n_threads is not None:
        found["INFERENCE_NUM_THREADS"] = n_threads
    found["ENABLE_CPU_PINNING"] = options.pins and not chosen_cores(options)  # it would pin to cores of its own choice
    return found


def _has_narrow_gates(spec: ModelSpec) -> bool:
    return any(isinstance(op, GatedAct) and op.width <= TOO_NARROW for op in spec.ops())


def _common_form(spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> tuple[CodeType, int]:
    """The code type and group size of most product weights; float32 and 0 without any."""
    codes: Counter[CodeType] = Counter()
    groups: Counter[int] = Counter()
    for op in spec.ops():
        if isinstance(op, MatMul):
            form, size = form_of(format_of(tensors[op.weight.tensor].ggml_type)), op.weight.n_rows * op.weight.columns
            codes[form.code] += size
            groups[form.group] += size if form.group else 0
    if not codes:
        return "f32", 0
    return codes.most_common(1)[0][0], groups.most_common(1)[0][0]


TASKS = Path("/proc/self/task")
STARTING_STEPS = 2
"""Number of first steps during which OpenVINO starts threads."""


def chosen_cores(options: DeviceOptions) -> tuple[int, ...]:
    """The cores to pin to; () for no pinning. Raises BadSetting for a core that does not exist."""
    if options.cores is None:
        return ()
    require_cpus(options.cores)
    return () if set(options.cores) == set(allowed_cpus()) else tuple(options.cores)


class Placing:
    """Pins the threads of one device; `after_step` is called after each step."""

    def __init__(self, options: DeviceOptions) -> None:
        """Records the existing threads: call it before OpenVINO is started. Raises BadSetting."""
        self._cores = chosen_cores(options)
        self._others = _native_threads() if self._cores else set()
        self._steps_left = STARTING_STEPS if self._cores else 0

    def expect_threads(self) -> None:
        """Another graph was compiled, which may start more threads."""
        self._steps_left = STARTING_STEPS if self._cores else 0

    def after_step(self) -> None:
        """Pin threads that have started, as long as more may start."""
        if not self._steps_left or sys.platform != "linux":
            return
        self._steps_left -= 1
        for thread in _native_threads() - self._others:
            try:
                os.sched_setaffinity(thread, self._cores)
            except OSError:  # it has ended
                continue


def _native_threads() -> set[int]:
    """Threads of this process that Python did not start; none if the system does not list them."""
    if not TASKS.is_dir():
        return set()
    ours = {thread.native_id for thread in threading.enumerate()}
    return {int(entry.name) for entry in TASKS.iterdir()} - {each for each in ours if each is not None}
