"""File differences of gpt-oss: in transformers gate and up rows alternate and columns come first; names differ.

In: parameters by transformers' names. Out: GGUF's tensors, and parameters again, following llama.cpp's converter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
SUFFIXES = {
    ".mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    ".mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    ".mlp.experts.down_proj": ("ffn_down_exps.weight",),
    ".mlp.experts.down_proj_bias": ("ffn_down_exps.bias",),
    ".self_attn.sinks": ("attn_sinks.weight",),
}


def parts(key: str, values: Array) -> list[tuple[str, Array]] | None:
    """GGUF's name and values of each tensor that a parameter becomes; None if it needs no special treatment."""
    suffix = next((suffix for suffix in SUFFIXES if key.endswith(suffix)), None)
    if suffix is None:
        return None
    layer, names = key.split(".")[2], SUFFIXES[suffix]
    turned = values.swapaxes(1, 2) if suffix.endswith("_proj") else values  # [E, D, 2F] -> [E, 2F, D]
    halves = [turned[:, place :: len(names)] for place in range(len(names))] if len(names) > 1 else [turned]
    return [(f"blk.{layer}.{name}", np.ascontiguousarray(half)) for name, half in zip(names, halves, strict=True)]


def parameter(key: str, held: list[Array]) -> Array:
    """The parameter made from the values of its tensors."""
    values = held[0]
    if len(held) > 1:
        values = np.stack(held, axis=2).reshape(values.shape[0], -1, *values.shape[2:])
    return values.swapaxes(1, 2) if key.endswith("_proj") else values
