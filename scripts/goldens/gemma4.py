"""Gemma 4: configurations of its three kinds, and how its files differ: names, sizes that differ by layer, factors.

In: sizes; parameters and configurations of transformers. Out: configurations; GGUF's tensors and keys, following
llama.cpp's converter.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from transformers import Gemma4TextConfig, Gemma4UnifiedConfig, Gemma4UnifiedTextConfig, PretrainedConfig

from goldens.cases import Sizes

Array = NDArray[np.float32]
WITHIN, EVERYWHERE = "sliding_attention", "full_attention"
NAMES = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
}
UNROTATED = 1e30
"""What divides the frequency of a pair that is not rotated."""


def dense(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """As 12B and 31B: in layers without a window, wider heads, fewer of them for keys, which are values too."""
    own = {
        "head_dim": sizes.head_width,
        "global_head_dim": 2 * sizes.head_width,
        "num_global_key_value_heads": max(1, sizes.kv_heads // 2),
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 12,
        "layer_types": [EVERYWHERE if number % 2 else WITHIN for number in range(sizes.layers)],
        "final_logit_softcapping": 30.0,
    }
    config = Gemma4TextConfig(**sizes.common() | own | changes)
    config.allow_global_per_layer_attribute_access = True  # sizes by layer are written as arrays
    return config


def small(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """As E2B: embeddings per layer; all but the first two layers share keys and values, and have wider networks."""
    kinds = [WITHIN, EVERYWHERE, *(WITHIN,) * (sizes.layers - 3), EVERYWHERE]
    own = {
        "attention_k_eq_v": False,
        "num_global_key_value_heads": None,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": sizes.common()["vocab_size"],
        "num_kv_shared_layers": sizes.layers - 2,
        "use_double_wide_mlp": True,
        "layer_types": kinds,
        "rms_norm_eps": 0.01,
    }
    return dense(sizes, **own | changes)


def unified(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """As 12B, which has no encoders beside its text part."""
    text = dense(sizes, **changes).to_dict()
    known = {field: text[field] for field in Gemma4UnifiedTextConfig().to_dict() if field in text}
    text = {key: value for key, value in known.items() if key not in ("model_type", "per_layer_config")}
    sizes_everywhere = {"global_head_dim": 2 * sizes.head_width, "num_global_key_value_heads": 1}
    return Gemma4UnifiedConfig(text_config=text | sizes_everywhere, vision_config=None, audio_config=None)


def mixture(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """As 26B-A4B: two of five experts beside each dense network."""
    own = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 32}
    return dense(sizes, **own | changes)


def part(key: str, values: Array) -> tuple[str, Array] | None:
    """GGUF's name and the values of a parameter; None if it needs no special treatment."""
    suffix = next((suffix for suffix in NAMES if key.endswith(suffix)), None)
    return None if suffix is None else (f"blk.{key.split('.')[2]}.{NAMES[suffix]}", values)


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add keys that other families do not have, or have as a single number."""
    layers = [config.per_layer_config[number] for number in range(config.num_hidden_layers)]
    kinds = [kind == WITHIN for kind in config.layer_types]
    n_own = config.num_hidden_layers - config.num_kv_shared_layers
    wide = (1, 2 if config.use_double_wide_mlp else 1)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_sliding_window_pattern(kinds)
    writer.add_head_count_kv([layer.num_key_value_heads for layer in layers])
    writer.add_feed_forward_length([config.intermediate_size * wide[n >= n_own] for n in range(len(layers))])
    width = layers[kinds.index(False)].head_dim
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(width)
    for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        add(config.head_dim)
    writer.add_rope_freq_base_swa(config.rope_parameters[WITHIN]["rope_theta"])


def rope_tensors(config: Any) -> dict[str, Array]:
    """Factors by which layers without a window rotate a part of each head."""
    width = config.per_layer_config[config.layer_types.index(EVERYWHERE)].head_dim
    n_rotated = int(width * config.rope_parameters[EVERYWHERE]["partial_rotary_factor"] / 2)
    factors = np.full(width // 2, UNROTATED, np.float32)
    factors[:n_rotated] = 1.0
    return {"rope_freqs.weight": factors}
