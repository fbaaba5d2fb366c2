"""Configurations of tiny models of recurrences alone, of Jamba and of Kimi Linear.

In: sizes. Out: configurations. States have rows of at least 16 numbers.
"""

from __future__ import annotations

from transformers import (
    FalconMambaConfig,
    JambaConfig,
    KimiLinearConfig,
    Mamba2Config,
    MambaConfig,
    PretrainedConfig,
)

from goldens.cases import Sizes


def _layers(sizes: Sizes) -> dict[str, object]:
    return {"hidden_size": sizes.width, "num_hidden_layers": sizes.layers, "state_size": 16}


def mamba(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Mamba, with rows that steps are computed from of an odd width."""
    return MambaConfig(**_layers(sizes) | {"time_step_rank": 6} | changes)


def falcon_mamba(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Falcon Mamba: b, c and the row of steps are normed, by the same epsilon in files; the head is not tied."""
    own = {"time_step_rank": 6, "mixer_rms_eps": 1e-5, "tie_word_embeddings": False}
    return FalconMambaConfig(**_layers(sizes) | own | changes)


def mamba2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Mamba-2 with two groups."""
    own = {"num_heads": 2 * sizes.width // 16, "head_dim": 16, "n_groups": 2, "chunk_size": 16}
    return Mamba2Config(**_layers(sizes) | own | changes)


def jamba(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Jamba: one layer in two attends, another one in two has experts."""
    own = {
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 3,
        "num_experts_per_tok": 2,
        "mamba_d_state": 16,
        "mamba_dt_rank": 6,
    }
    return JambaConfig(**sizes.common() | own | changes)


def kimi_linear(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Kimi Linear: delta attention in two of three layers, latent attention in the last; a dense layer first."""
    own = {
        "moe_intermediate_size": 32,
        "kv_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "num_experts_per_tok": 2,
        "num_local_experts": 4,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "linear_head_dim": 16,
        "linear_num_heads": sizes.heads,
    }
    return KimiLinearConfig(**sizes.common() | own | changes)
