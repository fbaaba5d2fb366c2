"""File differences of Qwen 3.5 and Qwen3-Next: names, the order of value heads, norms and decays.

In: parameters and configurations of transformers. Out: GGUF's tensors and keys, and parameters again, following
llama.cpp's converter: value heads that share a key head are as far apart as there are key heads, decays are -e^A_log,
norms other than those of delta nets hold 1 + weight. Qwen3-Next's projection of queries, keys, values and gates,
grouped by key head in transformers, becomes two in the file; its value heads keep their order.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
NAMES = {
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
}
QKVZ = "linear_attn.in_proj_qkvz.weight"
EXACT = ("ssm_conv1d.weight", "ssm_a")
"""Tensors that are never quantised."""


def name(key: str) -> str | None:
    """GGUF's name of a parameter; None if it needs no special treatment."""
    suffix = next((suffix for suffix in NAMES if key.endswith(suffix)), None)
    return None if suffix is None else f"blk.{key.split('.')[2]}.{NAMES[suffix]}"


def parts(key: str, values: Array, config: Any) -> list[tuple[str, Array]] | None:
    """GGUF's name and values of each tensor that a parameter becomes; None if it needs no special treatment."""
    if key.endswith(QKVZ):
        query, keys, own, gate = (
            part.reshape(-1, values.shape[1])
            for part in np.split(
                values.reshape(config.linear_num_key_heads, -1, values.shape[1]), _cuts(config), axis=1
            )
        )
        layer = key.split(".")[2]
        return [
            (f"blk.{layer}.attn_qkv.weight", np.concatenate([query, keys, own])),
            (f"blk.{layer}.attn_gate.weight", gate),
        ]
    target = name(key)
    return None if target is None else [(target, values)]


def joined(key: str, held: list[Array], config: Any) -> Array:
    """The parameter made from the values of its tensors."""
    if not key.endswith(QKVZ):
        return held[0]
    groups, width = config.linear_num_key_heads, config.linear_key_head_dim * config.linear_num_key_heads
    split = [*np.split(held[0], [width, 2 * width]), held[1]]
    by_head = [part.reshape(groups, -1, part.shape[1]) for part in split]
    return np.concatenate(by_head, axis=1).reshape(-1, held[0].shape[1])


def _cuts(config: Any) -> list[int]:
    """Where keys, values and gates of a key head begin in the rows of their projection."""
    width, each = config.linear_key_head_dim, config.linear_num_value_heads // config.linear_num_key_heads
    return [width, 2 * width, 2 * width + each * config.linear_value_head_dim]


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add keys that other families do not have."""
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    writer.add_uint32(f"{writer.arch}.full_attention_interval", 4)
    width = config.head_dim * config.rope_parameters["partial_rotary_factor"]
    writer.add_rope_dimension_count(int(width))
    if "mrope_section" in config.rope_parameters:
        writer.add_rope_dimension_sections([int(width) // 4, int(width) // 8, int(width) // 8, 0])


def to_file(values: Array, key: str, config: Any) -> Array:
    """The values of a parameter as the file stores them."""
    if key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
        return values + np.float32(1)
    if key.endswith("A_log"):
        values = -np.exp(values)
    if key.endswith("conv1d.weight"):
        values = values[:, 0]
    return _moved(values, key, config, back=False)


def from_file(values: Array, key: str, config: Any) -> Array:
    """The parameter made from the values of a tensor."""
    if key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight"):
        return values - np.float32(1)
    values = _moved(values, key, config, back=True)
    if key.endswith("A_log"):
        return np.log(-values)
    return values[:, None] if key.endswith("conv1d.weight") else values


def _moved(values: Array, key: str, config: Any, *, back: bool) -> Array:
    """Reorder value heads: grouped by key head, or by their number within each key head's group."""
    if "linear_attn." not in key or key.endswith("linear_attn.norm.weight") or config.model_type == "qwen3_next":
        return values
    count, groups = config.linear_num_value_heads, config.linear_num_key_heads
    order = np.arange(count).reshape(groups, -1).T.ravel()  # index of the grouped head for each tiled one
    order = np.argsort(order) if back else order
    if key.endswith("out_proj.weight"):
        return values.reshape(len(values), count, -1)[:, order].reshape(values.shape)
    first = 2 * groups * config.linear_key_head_dim if key.endswith(("in_proj_qkv.weight", "conv1d.weight")) else 0
    moved = values[first:].reshape(count, -1, *values.shape[1:])[order].reshape(-1, *values.shape[1:])
    return np.concatenate([values[:first], moved])
