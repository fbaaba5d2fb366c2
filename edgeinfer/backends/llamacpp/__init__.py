"""llama.cpp, through llama-cpp-python's low-level binding: any GGUF file that it can read, on CPU or GPU.

In: a model file and limits. Out: an `Evaluator`. llama_cpp is imported only when a model is opened. Its batched and
single evaluations round differently, so logits are not batch-invariant.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from edgeinfer.backends.base import DeviceOptions, Footprint, Limits
from edgeinfer.backends.evaluator import Evaluator, EvaluatorKind
from edgeinfer.backends.llamacpp.library import INSTALL, KEY
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.step import PAGE
from edgeinfer.models.gguf import TensorInfo
from edgeinfer.settings import KVKind
from edgeinfer.steps import Progress

CACHED_BYTES: Mapping[KVKind, float] = MappingProxyType(
    {"f16": 2.0, "q8": 34 / 32, "q8q4": (34 / 32 + 18 / 32) / 2, "q4": 18 / 32}
)
"""Bytes of a cached number in ggml's Q8_0 and Q4_0: blocks of 32 with a float16 scale."""
PASS_BUFFERS = 6
"""Approximate number of rows of the model's widest value that a pass holds at a time."""


def footprint(spec: ModelSpec, tensors: Mapping[str, TensorInfo], limits: Limits) -> Footprint:
    """Bytes as llama.cpp stores them: the file's tensors, its cells, and an estimate for a pass."""
    per_token = int(spec.kv_bytes_per_token(1) * CACHED_BYTES[limits.kv])
    widest = max(spec.width, spec.ffn_width, spec.heads * spec.head_width)
    buffers = 4 * (limits.max_tokens * widest * PASS_BUFFERS + limits.max_outputs * spec.n_vocab)
    weights = sum(info.nbytes for info in tensors.values())
    return Footprint(weights, per_token, per_token * PAGE * limits.n_pages, buffers)


def _open(path: Path, limits: Limits, options: DeviceOptions, progress: Progress) -> Evaluator:
    from edgeinfer.backends.llamacpp.evaluator import LlamaEvaluator

    return LlamaEvaluator(path, limits, options, progress)


DEVICE = EvaluatorKind(
    KEY,
    "llama.cpp: every GGUF model it knows, on CPU or GPU",
    "llama_cpp",
    INSTALL,
    _open,
    footprint,
    kv_kinds=get_args(KVKind),
)
