"""Configurations of tiny models with Mamba-2's layers, which differ in groups, norms and what stands beside them.

In: sizes. Out: configurations. Heads have 16 numbers, as have states.
"""

from __future__ import annotations

from transformers import FalconH1Config, GraniteMoeHybridConfig, NemotronHConfig, PretrainedConfig

from goldens.cases import Sizes
from goldens.further_cases import SCALES

STATE = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16}


def granite_hybrid(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Granite 4 H, dense: one layer in two attends."""
    kinds = ["full_attention" if layer % 2 else "linear_attention" for layer in range(sizes.layers)]
    own = {"layer_types": kinds, "shared_intermediate_size": sizes.ffn_width, "num_local_experts": 0}
    return GraniteMoeHybridConfig(**sizes.common() | SCALES | STATE | own | {"num_experts_per_tok": 0} | changes)


def granite_hybrid_moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Granite 4 H with experts and a shared one of another width."""
    own = {"num_local_experts": 3, "num_experts_per_tok": 2, "shared_intermediate_size": 48}
    return granite_hybrid(sizes, **own | changes)


def falcon_h1(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Falcon-H1: multipliers everywhere (powers of two, exact in bfloat16), groups, no norm after the recurrence."""
    own = {
        "head_dim": sizes.head_width,
        "mamba_d_ssm": 64,
        "mamba_n_groups": 2,
        "mlp_multipliers": [0.5, 2.0],
        "ssm_multipliers": [0.5, 2.0, 0.5, 2.0, 0.25],
        "key_multiplier": 0.5,
        "attention_in_multiplier": 2.0,
        "attention_out_multiplier": 0.5,
        "ssm_in_multiplier": 2.0,
        "ssm_out_multiplier": 0.5,
        "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.5,
        "tie_word_embeddings": False,
    }
    return FalconH1Config(**sizes.common() | STATE | own | changes)


def falcon_h1_normed(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Falcon-H1 with a norm of each group after the gate."""
    return falcon_h1(sizes, mamba_rms_norm=True, mamba_norm_before_gate=False, **changes)


def nemotron_h(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Nemotron-H: each layer is a recurrence over two groups, a feed-forward network, or attention."""
    kinds = ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"]
    own = {
        "layers_block_type": kinds[: sizes.layers],
        "head_dim": sizes.head_width,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 16,
    }
    common = {key: value for key, value in sizes.common().items() if key != "num_hidden_layers"}
    return NemotronHConfig(**common | own | changes)


def nemotron_h_moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Nemotron-H with two groups of experts and a shared one of another width, in place of dense networks."""
    kinds = ["linear_attention", "moe", "full_attention", "linear_attention", "moe"]
    own = {
        "layers_block_type": kinds[: sizes.layers],
        "n_routed_experts": 6,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "routed_scaling_factor": 2.5,
    }
    return nemotron_h(sizes, **own | changes)


def nemotron_h_latent(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """The same with experts that read narrower rows; their shares do not add up to one."""
    own = {"moe_latent_size": 32, "moe_intermediate_size": 32, "norm_topk_prob": False}
    return nemotron_h_moe(sizes, **own | changes)
