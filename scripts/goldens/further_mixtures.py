"""Configurations of further mixtures and of models that clip values, judged on files of llama.cpp's converter.

In: sizes. Out: configurations of tiny models, as in `further_cases`.
"""

from __future__ import annotations

import math

from transformers import (
    Cohere2MoeConfig,
    DbrxConfig,
    DeepseekV2Config,
    LagunaConfig,
    Llama4TextConfig,
    Mistral4Config,
    Mistral4ForCausalLM,
    PhimoeConfig,
    PretrainedConfig,
)

from goldens.cases import LLAMA3, Case, Sizes
from goldens.further_cases import mpt, olmo
from goldens.mixture_cases import LATENT, YARN

CLIP = 1.25
WINDOW = 12
CHUNKS = {"attention_chunk_size": 24, "floor_scale": 10, "attn_scale": 0.4}


def llama4(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Scout: one of four experts and a shared one in every layer, norms of heads without weights."""
    own = {"num_local_experts": 4, "intermediate_size": 32, "intermediate_size_mlp": sizes.ffn_width}
    own |= {"head_dim": sizes.head_width, "rope_parameters": LLAMA3}
    return Llama4TextConfig(**sizes.common() | own | changes)


def maverick(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Maverick: one of 128 experts in every second layer, no norms of heads."""
    own = {"num_local_experts": 128, "interleave_moe_layer_step": 2, "use_qk_norm": False, "intermediate_size": 16}
    return llama4(sizes, **own, **changes)


def dbrx(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """DBRX: two of four experts, clipped queries, keys and values."""
    attention = {"kv_n_heads": sizes.kv_heads, "clip_qkv": CLIP, "rope_theta": 5e5}
    experts = {"ffn_hidden_size": sizes.ffn_width, "moe_num_experts": 4, "moe_top_k": 2}
    own = {"d_model": sizes.width, "n_heads": sizes.heads, "n_layers": sizes.layers, "max_seq_len": 256}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    return DbrxConfig(**own | rope | {"attn_config": attention, "ffn_config": experts} | changes)


def phimoe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Phi 3.5 MoE: two of four experts by a sparse mixer, LayerNorms, biases, LongRoPE of the usual magnitude."""
    pairs, magnitude = sizes.head_width // 2, (1 + math.log(1024 / 256) / math.log(256)) ** 0.5
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 256}
    rope |= {"short_factor": [1.0 + 0.05 * pair for pair in range(pairs)], "short_mscale": magnitude}
    rope |= {"long_factor": [1.5 + 0.9 * pair for pair in range(pairs)], "long_mscale": magnitude}
    own = {"num_local_experts": 4, "attention_bias": True, "lm_head_bias": True, "rope_parameters": rope}
    context = {"max_position_embeddings": 1024, "original_max_position_embeddings": 256}
    return PhimoeConfig(**sizes.common() | context | own | changes)


def laguna(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Laguna XS.2: a gate per head, fewer heads in layers without windows, half of each head rotated there."""
    heads = [sizes.heads if number % 4 else sizes.heads // 2 for number in range(sizes.layers)]
    own = {"layer_types": ["sliding_attention" if number % 4 else "full_attention" for number in range(sizes.layers)]}
    own |= {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "sliding_window": WINDOW}
    own |= {"shared_expert_intermediate_size": 64, "head_dim": sizes.head_width, "moe_routed_scaling_factor": 1.5}
    rope = {
        "full_attention": YARN | {"rope_theta": 5e5, "partial_rotary_factor": 0.5, "beta_fast": 32.0, "beta_slow": 1.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    }
    own |= {"num_attention_heads_per_layer": heads, "rope_parameters": rope}
    return LagunaConfig(**sizes.common() | own | changes)


def laguna_elements(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Laguna M.1: a gate for each number."""
    return laguna(sizes, gating="per-element", **changes)


def cohere2moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Cohere 2 MoE: a dense layer, then two of four experts and a shared one; both branches read one norm."""
    own = {"num_experts": 4, "num_shared_experts": 1, "head_dim": sizes.head_width, "sliding_window": WINDOW}
    own |= {
        "first_k_dense_replace": 1,
        "sliding_window_pattern": 2,
        "prefix_dense_intermediate_size": sizes.ffn_width,
        "logit_scale": 0.5,
    }
    return Cohere2MoeConfig(**sizes.common() | own | {"expert_selection_fn": "sigmoid"} | changes)


def mistral4(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Mistral 4: two of four experts and a shared one; its files do not say that queries grow."""
    own = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    rope = YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    rope |= {"llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 128}
    heads = {"num_key_value_heads": sizes.heads, "rope_parameters": rope}
    return Mistral4Config(**sizes.common() | LATENT | own | heads | changes)


def deepseek2_groups(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """DeepSeek-V2: three of twelve experts, from the two of four groups with the best experts."""
    own = {"n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 1, "n_group": 4, "topk_group": 2}
    own |= {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7, "moe_intermediate_size": 32}
    own |= {"first_k_dense_replace": 1}
    rope = YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707}
    heads = {"num_key_value_heads": sizes.heads, "rope_parameters": rope}
    return DeepseekV2Config(**sizes.common() | LATENT | own | heads | changes)


def clipped_olmo(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """OLMo 7B: clipped queries, keys and values."""
    return olmo(sizes, clip_qkv=CLIP, **changes)


def clipped_mpt(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """MPT StoryWriter: clipped queries, keys and values."""
    return mpt(sizes, attn_config={"clip_qkv": CLIP, "attn_impl": "torch"}, **changes)


LAYERS = Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=64, layers=4)
PLAIN = Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=64)
GROWING = YARN | {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.4,
}
FURTHER_MIXTURES = (
    Case(
        "llama4",
        "llama4",
        lambda sizes: llama4(sizes, interleave_moe_layer_step=2, **CHUNKS),
        ("f32", "q8_0"),
        LAYERS,
    ),
    Case(
        "mistral4",
        "deepseek2",
        lambda sizes: mistral4(sizes, rope_parameters=GROWING),
        ("f32",),
        PLAIN,
        model=lambda config: Mistral4ForCausalLM._from_config(config, attn_implementation="eager"),
    ),
)
