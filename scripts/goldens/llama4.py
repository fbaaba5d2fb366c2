"""File differences of Llama 4: matrices of experts, whose columns come first in transformers, and keys.

In: parameters and configurations of transformers. Out: GGUF's tensors and keys, following llama.cpp's converter, which
states neither the chunks nor how queries grow, since published models share them.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
GATE_UP, DOWN = ".feed_forward.experts.gate_up_proj", ".feed_forward.experts.down_proj"


def parts(key: str, values: Array) -> list[tuple[str, Array]] | None:
    """The matrices of experts, rows first; None for other parameters."""
    if not key.endswith((GATE_UP, DOWN)):
        return None
    layer, turned = key.split(".")[2], np.ascontiguousarray(values.swapaxes(1, 2))
    if key.endswith(DOWN):
        return [(f"blk.{layer}.ffn_down_exps.weight", turned)]
    halves = zip(("gate", "up"), np.split(turned, 2, axis=1), strict=True)
    return [(f"blk.{layer}.ffn_{name}_exps.weight", half) for name, half in halves]


def parameter(held: list[Array]) -> Array:
    """The inverse of `parts`."""
    return np.ascontiguousarray(np.concatenate(held, axis=1).swapaxes(1, 2))


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add keys that other families do not have."""
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_sliding_window(config.attention_chunk_size)
    writer.add_attn_temperature_scale(config.attn_scale)
    writer.add_attn_temperature_length(config.floor_scale)
