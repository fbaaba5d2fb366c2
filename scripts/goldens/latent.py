"""File differences of DeepSeek-V3: projections of keys and values apart, those of keys transposed; ranks and widths.

In: parameters and configurations of transformers. Out: GGUF's tensors and keys, following llama.cpp's converter.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
BOTH = ".self_attn.kv_b_proj.weight"


def parts(key: str, values: Array, config: Any) -> list[tuple[str, Array]] | None:
    """The projections of keys, float32[H, R, K], and of values, float32[H, V, R]; None for other parameters."""
    if not key.endswith(BOTH):
        return None
    plain, value, rank = config.qk_nope_head_dim, config.v_head_dim, values.shape[1]
    heads, layer = values.reshape(-1, plain + value, rank), key.split(".")[2]
    return [
        (f"blk.{layer}.attn_k_b.weight", np.ascontiguousarray(heads[:, :plain].swapaxes(1, 2))),
        (f"blk.{layer}.attn_v_b.weight", np.ascontiguousarray(heads[:, plain:])),
    ]


def parameter(held: list[Array]) -> Array:
    """The inverse of `parts`."""
    heads = np.concatenate([held[0].swapaxes(1, 2), held[1]], axis=1)
    return heads.reshape(-1, heads.shape[-1])


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add keys that other families do not have."""
    rotary, rank = config.qk_rope_head_dim, config.kv_lora_rank
    writer.add_head_count_kv(1)
    writer.add_vocab_size(config.vocab_size)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(rank + rotary)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + rotary)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_rope_dimension_count(rotary)
    writer.add_rope_scaling_yarn_log_mul(0.1 * config.rope_parameters["mscale_all_dim"])
    if "llama_4_scaling_beta" in config.rope_parameters:
        writer.add_attn_temperature_scale(config.rope_parameters["llama_4_scaling_beta"])
        writer.add_attn_temperature_length(config.rope_parameters["original_max_position_embeddings"])
