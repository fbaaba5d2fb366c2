"""Configurations of mixtures that are judged on files of llama.cpp's converter.

In: sizes. Out: configurations of tiny models, as in `further_cases`.
"""

from __future__ import annotations

from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    DeepseekV32Config,
    ExaoneMoeConfig,
    Glm4MoeLiteConfig,
    GlmMoeDsaConfig,
    HunYuanMoEV1Config,
    HYV3Config,
    MiniMaxM2Config,
    PretrainedConfig,
)

from goldens.cases import Case, Sizes
from goldens.further_cases import glm4moe

WINDOW = 12

LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
"""Ranks, and widths of the plain and the rotated part of keys and of values."""
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}


def deepseek3(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """DeepSeek-V3: a dense layer, then three of twelve experts from two of four groups; YaRN."""
    own = {"n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "n_shared_experts": 1}
    own |= {"first_k_dense_replace": 1, "moe_intermediate_size": 16, "routed_scaling_factor": 1.7}
    own |= {"scoring_func": "sigmoid"}
    rope = YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    heads = {"num_key_value_heads": sizes.heads, "rope_parameters": rope}
    return DeepseekV3Config(**sizes.common() | LATENT | own | heads | changes)


def deepseek2_lite(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """DeepSeek-V2-Lite: queries without a latent row, two of four experts and two shared ones; YaRN.

    Heads are narrower than the latent row, as in published models.
    """
    own = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 2, "q_lora_rank": None}
    own |= {"qk_nope_head_dim": 16, "v_head_dim": 16}
    own |= {"first_k_dense_replace": 1, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
    rope = YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707}
    heads = {"num_key_value_heads": sizes.heads, "rope_parameters": rope}
    return DeepseekV2Config(**sizes.common() | LATENT | own | heads | changes)


def glm4_moe_lite(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """GLM-4.7-Flash: a dense layer, then two of four experts and a shared one."""
    own = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    own |= {"scoring_func": "sigmoid"}
    heads = {"num_key_value_heads": sizes.heads}
    return Glm4MoeLiteConfig(**sizes.common() | LATENT | own | heads | changes)


INDEXER = {"max_position_embeddings": 512, "index_topk": 256, "index_head_dim": 32, "index_n_heads": 2}
"""An indexer of sparse attention, which chooses more positions than the text has."""


def deepseek32(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """DeepSeek-V3.2: V3 with an indexer."""
    v3 = deepseek3(sizes).to_dict()
    kept = ("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group", "n_shared_experts")
    kept += ("first_k_dense_replace", "moe_intermediate_size", "routed_scaling_factor", "rope_parameters")
    own = {name: v3[name] for name in kept} | {"num_key_value_heads": sizes.heads, "scoring_func": "sigmoid"}
    return DeepseekV32Config(**sizes.common() | LATENT | own | INDEXER | changes)


def glm_dsa(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """GLM 5: a dense layer, then two of four experts and a shared one; an indexer."""
    own = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    own |= {"num_key_value_heads": sizes.heads}
    return GlmMoeDsaConfig(**sizes.common() | LATENT | own | INDEXER | changes)


def minimax_m2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """MiniMax M2: two of five experts, norms over all heads, half of each head rotated."""
    own = {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": sizes.head_width}
    own |= {"rotary_dim": sizes.head_width // 2, "scoring_func": "sigmoid", "intermediate_size": 16}
    return MiniMaxM2Config(**sizes.common() | own | changes)


def exaone_moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """K-EXAONE: a dense layer, then two of five experts and a shared one; windows in three of four layers."""
    own = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": sizes.head_width}
    own |= {"sliding_window": WINDOW, "scoring_func": "sigmoid"}
    return ExaoneMoeConfig(**sizes.common() | own | changes)


def hy_v3(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Hunyuan 3: a dense layer, then two of five experts and a shared one."""
    own = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": sizes.head_width}
    return HYV3Config(**sizes.common() | own | changes)


def hunyuan_moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Hunyuan's mixture: head norms after the rotation, two of four experts and a shared one."""
    own = {"head_dim": sizes.head_width, "num_experts": 4, "moe_topk": 2, "num_experts_per_tok": 2}
    own |= {"moe_intermediate_size": sizes.ffn_width, "shared_expert_intermediate_size": sizes.ffn_width}
    return HunYuanMoEV1Config(**sizes.common() | own | changes)


def bailingmoe2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Ling 2.0, whose layers are those of GLM 4.5 with head norms and without biases."""
    return glm4moe(sizes, attention_bias=False, **changes)


KINDS = Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=64)
PLAIN = Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=64)
"""Head width = width / heads, as llama.cpp expects of Ling."""
MIXTURE_CASES = (
    Case("hunyuan-moe", "hunyuan-moe", hunyuan_moe, ("f32", "q8_0"), KINDS),
    Case("bailingmoe2", "bailingmoe2", bailingmoe2, ("f32", "q8_0"), PLAIN),
    Case(
        "deepseek2",
        "deepseek2",
        lambda sizes: deepseek3(sizes, moe_intermediate_size=32),
        ("f32", "q8_0", "q4_0"),
        PLAIN,
    ),
)
