"""File differences of the families in `further_cases`: names, row orders, keys.

In: parameters and configurations of transformers. Out: GGUF's tensors and keys, following llama.cpp's converter.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
PAIRED = ("llama", "arcee", "granite", "granitemoe", "smollm3", "olmo")
"""Families whose query and key rows are reordered so that rotary pairs are adjacent."""
PARTLY_ROTATED = ("bailingmoe2", "glm4", "glm4moe", "gptneox", "nemotron", "phi2", "stablelm")
WITH_LAYER_NORMS = ("cohere2", "command-r", "gptneox", "nemotron", "olmo", "phi2", "stablelm", "starcoder2")
SUFFIXES = {
    ".block_sparse_moe.router.weight": ("ffn_gate_inp.weight",),
    ".block_sparse_moe.experts.down_proj": ("ffn_down_exps.weight",),
    ".shared_mlp.input_linear.weight": ("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
    ".mlp.gate.e_score_correction_bias": ("exp_probs_b.bias",),
    ".mlp.expert_bias": ("exp_probs_b.bias",),
    ".self_attn.qkv_proj.weight": ("attn_qkv.weight",),
    ".self_attn.attn_sub_norm.weight": ("attn_sub_norm.weight",),
    ".mlp.ffn_sub_norm.weight": ("ffn_sub_norm.weight",),
}
LAYERS = ".query_key_value."
JOINED = ("bailingmoe2", "openelm")
"""Families whose files have queries, keys and values in one tensor, made from three parameters."""


def parts(key: str, values: Array) -> list[tuple[str, Array]] | None:
    """GGUF's name and values of each tensor that a parameter becomes; None if it needs no special treatment."""
    suffix = next((suffix for suffix in SUFFIXES if key.endswith(suffix)), None)
    if suffix is None:
        return None
    layer, names = key.split(".")[2], SUFFIXES[suffix]
    return [(f"blk.{layer}.{name}", part) for name, part in zip(names, np.split(values, len(names)), strict=True)]


def to_file(values: Array, key: str, config: Any) -> Array:
    """Queries, keys and values of all heads one after the other, from rows in which they alternate by head."""
    if LAYERS not in key:
        return values
    return values.reshape(config.num_attention_heads, 3, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)


def from_file(values: Array, key: str, config: Any) -> Array:
    """The inverse of `to_file`."""
    if LAYERS not in key:
        return values
    return values.reshape(3, config.num_attention_heads, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)


def joined(parameters: dict[str, Array]) -> dict[str, Array]:
    """The parameters, with queries, keys and values of a layer joined in one."""
    found: dict[str, Array] = {}
    for key, values in parameters.items():
        stem, _, part = key.rpartition("self_attn.")
        if part not in ("q_proj.weight", "k_proj.weight", "v_proj.weight"):
            found[key] = values
        elif part.startswith("q"):
            names = (f"{stem}self_attn.{letter}_proj.weight" for letter in "qkv")
            found[f"{stem}self_attn.qkv_proj.weight"] = np.concatenate([parameters[name] for name in names])
    return found


def apart(held: dict[str, Array], config: Any) -> dict[str, Array]:
    """The inverse of `joined`."""
    found: dict[str, Array] = {}
    for key, values in held.items():
        if not key.endswith("qkv_proj.weight"):
            found[key] = values
            continue
        layer = int(key.split(".")[2])
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        if getattr(config, "layer_heads", None) is not None:
            heads, kv_heads = config.layer_heads[layer], config.layer_kv_heads[layer]
        ends = np.cumsum([heads, kv_heads]) * config.head_dim
        for letter, part in zip("qkv", np.split(values, ends), strict=True):
            found[key.replace("qkv_proj", f"{letter}_proj")] = part
    return found


def add_sizes(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    """Add keys that other families do not have, or have as a single number."""
    prefix = f"{architecture}."
    if architecture.startswith("granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if architecture == "granitemoe":
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if architecture in ("cohere2", "command-r"):
        writer.add_logit_scale(config.logit_scale)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if architecture == "gptneox":
        writer.add_parallel_residual(config.use_parallel_residual)
    if architecture in ("bailingmoe2", "deepseek2", "glm4moe"):
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        gating = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(gating.SOFTMAX if config.model_type == "mistral4" else gating.SIGMOID)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_uint32(f"{prefix}expert_group_count", config.n_group)
        writer.add_uint32(f"{prefix}expert_group_used_count", config.topk_group)
    if architecture == "afmoe":
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config.route_scale)
        writer.add_expert_weights_norm(True)
    if architecture in PARTLY_ROTATED:
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(width * config.rope_parameters["partial_rotary_factor"]))


def add_norms(writer: gguf.GGUFWriter, config: Any, architecture: str) -> None:
    """Add the epsilon of the norms."""
    if architecture in WITH_LAYER_NORMS:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", 1e-5))  # OLMo's configuration has none
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def add_heads(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add heads and widths of feed-forward networks, as arrays where layers differ."""
    if config.model_type == "gemma4_text":  # it has its own arrays
        writer.add_head_count(config.num_attention_heads)
        return
    if getattr(config, "layer_heads", None) is not None:
        writer.add_feed_forward_length(config.layer_ffn)
        writer.add_head_count(config.layer_heads)
        writer.add_head_count_kv(config.layer_kv_heads)
        return
    dense = getattr(config, "intermediate_size_mlp", None)  # Llama 4's other width is that of experts
    writer.add_feed_forward_length(dense or config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if getattr(config, "conv_L_cache", None) is None:  # LFM2 has its own array
        writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
