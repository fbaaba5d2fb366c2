"""llama.cpp, through llama-cpp-python's own binding of its calls: any GGUF file that it can read, on CPU or GPU.

In: a model's file and limits. Out: an `Evaluator`. Imports llama_cpp only when a model is opened. Its batched and
single evaluations round differently, so logits are not batch-invariant.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgeinfer.backends.base import DeviceOptions, Footprint, Limits
from edgeinfer.backends.evaluator import Evaluator, EvaluatorKind
from edgeinfer.backends.llamacpp.library import INSTALL, KEY
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.steps import Progress

INT8_BYTES = 34 / 32
"""Of a cached number in ggml's Q8_0: blocks of 32 with a float16 scale."""
PASS_BUFFERS = 6
"""Rows of the model's widest value that a pass holds at a time, roughly."""


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Bytes as llama.cpp keeps them: the file's tensors, its cells, and an estimate of what a pass takes."""
    per_token = int(spec.kv_bytes_per_token(1) * (INT8_BYTES if limits.kv == "int8" else 2))
    widest = max(spec.width, spec.ffn_width, spec.heads * spec.head_width)
    buffers = 4 * (limits.max_tokens * widest * PASS_BUFFERS + limits.max_outputs * spec.n_vocab)
    weights = sum(info.nbytes for info in tensors.values())
    return Footprint(weights, per_token, per_token * PAGE * limits.n_pages, buffers)


def _open(path: Path, limits: Limits, options: DeviceOptions, progress: Progress) -> Evaluator:
    from edgeinfer.backends.llamacpp.evaluator import LlamaEvaluator

    return LlamaEvaluator(path, limits, options, progress)


DEVICE = EvaluatorKind(
    KEY, "llama.cpp: every GGUF model it knows, on CPU or GPU", "llama_cpp", INSTALL, _open, footprint
)
