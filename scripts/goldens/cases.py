"""The golden cases: a transformers configuration for every architecture and each of its variations.

In: sizes. Out: configurations of tiny models. Does not depend on GGUF or edgeinfer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    OlmoeConfig,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

VOCABULARY = 264
N_TOKENS = 72  # more than one page of 64 cached positions
OPT_CONTEXT = 96


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a tiny model."""

    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    layers: int = 2

    def common(self) -> dict[str, object]:
        """Keyword arguments common to all configurations."""
        return {
            "vocab_size": VOCABULARY,
            "hidden_size": self.width,
            "intermediate_size": self.ffn_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": 256,
            "bos_token_id": 256,
            "eos_token_id": 258,
            "pad_token_id": 256,
            "attn_implementation": "eager",
        }


FLOAT = Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=48)
SMALL = Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=64)
MIDDLE = Sizes(width=64, heads=4, kv_heads=2, head_width=16, ffn_width=96)
WIDE = Sizes(width=256, heads=4, kv_heads=2, head_width=16, ffn_width=32, layers=1)
SQUARE = Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=64)
"""Head width = width / heads: for families whose files cannot specify another."""
EVEN = Sizes(width=32, heads=2, kv_heads=2, head_width=16, ffn_width=64)
"""As many key heads as query heads: for OLMoE, the only variant that llama.cpp reads."""
WIDE_SQUARE = Sizes(width=256, heads=8, kv_heads=2, head_width=32, ffn_width=32, layers=1)
PERIOD = Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=32, layers=7)
"""Seven layers: one full period of Gemma 3 and one more layer."""

HYBRID = Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=64, layers=4)
"""Layers without attention before and after one with attention."""
WIDE_HYBRID = Sizes(width=256, heads=8, kv_heads=2, head_width=32, ffn_width=32, layers=3)

DELTA = Sizes(width=32, heads=2, kv_heads=1, head_width=32, ffn_width=64, layers=5)
"""A period of Qwen 3.5 and one more layer."""
ROUNDED_DELTA = Sizes(width=128, heads=2, kv_heads=1, head_width=32, ffn_width=160, layers=4)
"""Wide enough that the effects of rounded activations on states average out."""
NARROW_DELTA = Sizes(width=32, heads=2, kv_heads=1, head_width=32, ffn_width=32, layers=4)
ROUNDED_NARROW = Sizes(width=128, heads=2, kv_heads=1, head_width=32, ffn_width=64, layers=4)
WIDE_DELTA = Sizes(width=256, heads=2, kv_heads=1, head_width=32, ffn_width=32, layers=4)

LOW = Sizes(width=256, heads=4, kv_heads=2, head_width=64, ffn_width=256, layers=2)
"""Rows of 256 everywhere, and more matrices than formats."""

SIZES = {"f32": FLOAT, "f16": FLOAT, "bf16": FLOAT, "q8_0": SMALL, "q4_0": MIDDLE, "k": WIDE}
"""Sizes by file format; "k" mixes all formats that need wide rows, and others."""

FORMATS = ("f32", "f16", "q8_0", "q4_0", "k")


@dataclass(frozen=True, slots=True)
class Case:
    """A model family or a variation: `architecture` is GGUF's key, `config` makes the configuration.

    `turn` is where a "k" file starts in the lists of formats, so that all cases together cover all of them. `quiet` is
    added to the biases of the first products of feed-forward networks: below zero it makes ReLU output zeros.
    `thresholds` of activations are tested in separate runs. `model` builds, from parts, what transformers has no class
    for. `runs` are (name, tokens evaluated, context edgeinfer is opened with); a run's name is part of its file's name.
    """

    name: str
    architecture: str
    config: Callable[[Sizes], PretrainedConfig]
    formats: tuple[str, ...] = ("q8_0",)
    sizes: Sizes | None = None
    turn: int = 0
    quiet: float = 0.0
    thresholds: tuple[float, ...] = ()
    runs: tuple[tuple[str, int, int], ...] = (("", N_TOKENS, 256),)
    model: Callable[[PretrainedConfig], Any] | None = None


def llama(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Llama with a tied head and an explicit head width."""
    return LlamaConfig(**sizes.common() | {"head_dim": sizes.head_width, "tie_word_embeddings": True} | changes)


def mistral(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Mistral: windows in all layers, an untied head."""
    own = {"head_dim": sizes.head_width, "sliding_window": 12, "tie_word_embeddings": False, "rms_norm_eps": 1e-5}
    return MistralConfig(**sizes.common() | own | changes)


def qwen2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Qwen 2: biases, an untied head."""
    own = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": False}
    return Qwen2Config(**sizes.common() | own | changes)


def qwen3(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Qwen 3: head norms, a tied head."""
    own = {"head_dim": sizes.head_width, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    return Qwen3Config(**sizes.common() | own | {"tie_word_embeddings": True} | changes)


def mixtral(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Mixtral: two of four experts, expert weights that add up to one."""
    own = {"head_dim": sizes.head_width, "num_local_experts": 4, "num_experts_per_tok": 2}
    return MixtralConfig(**sizes.common() | own | changes)


def qwen2moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Qwen 2's mixture: two of six experts, narrower than the shared one; expert weights do not add up to one."""
    own = {
        "intermediate_size": 3 * sizes.ffn_width,  # for dense layers, of which there are none
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": sizes.ffn_width,
        "shared_expert_intermediate_size": 2 * sizes.ffn_width,
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
    }
    return Qwen2MoeConfig(**sizes.common() | own | changes)


def qwen3moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Qwen 3's mixture: three of eight experts, head norms, expert weights that add up to one."""
    own = {
        "head_dim": sizes.head_width,
        "intermediate_size": 3 * sizes.ffn_width,  # for dense layers, of which there are none
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": sizes.ffn_width,
        "norm_topk_prob": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
    return Qwen3MoeConfig(**sizes.common() | own | changes)


def olmoe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """OLMoE: norms over all heads, four of eight experts, expert weights that do not add up to one."""
    own = {"num_experts": 8, "num_experts_per_tok": 4, "norm_topk_prob": False, "rms_norm_eps": 1e-5}
    return OlmoeConfig(**sizes.common() | own | changes)


def phi3(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Phi 3: fused projections."""
    return Phi3Config(**sizes.common() | {"original_max_position_embeddings": 256} | changes)


def phi3_longrope(sizes: Sizes) -> PretrainedConfig:
    """Phi 3 with LongRoPE over three quarters of each head."""
    pairs = int(sizes.head_width * 0.75) // 2
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0 + 0.05 * pair for pair in range(pairs)],
        "long_factor": [1.5 + 0.9 * pair for pair in range(pairs)],
    }
    return phi3(sizes, original_max_position_embeddings=64, rope_parameters=rope)


def gemma2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Gemma 2 with caps low enough to take effect and a window shorter than the sequence."""
    own = {
        "head_dim": sizes.head_width,
        "query_pre_attn_scalar": sizes.head_width,
        "sliding_window": 12,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 4.0,
    }
    return Gemma2Config(**sizes.common() | own | changes)


def gemma3(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Gemma 3 with windows, two rotary bases, and linear scaling of the global layers, as in the larger models."""
    rope = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    own = {
        "head_dim": sizes.head_width,
        "query_pre_attn_scalar": sizes.head_width,
        "sliding_window": 12,
        "rope_parameters": rope,
    }
    return Gemma3TextConfig(**sizes.common() | own | changes)


def gpt_oss(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """gpt-oss: two of four experts with biases, sinks, a window in every second layer, YaRN."""
    rope = scaled("yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0, truncate=True)
    own = {
        "head_dim": sizes.head_width,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 12,
        "rope_parameters": rope,
        "layer_types": [("full", "sliding")[layer % 2 == 0] + "_attention" for layer in range(sizes.layers)],
    }
    return GptOssConfig(**sizes.common() | own | changes)


def lfm2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """LFM2: convolutions over three tokens before and after a layer with attention."""
    own = {
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False,
        "norm_eps": 1e-5,
        "layer_types": ["full_attention" if layer == 1 else "conv" for layer in range(sizes.layers)],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
    return Lfm2Config(**sizes.common() | own | changes)


def lfm2moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """LFM2's mixture: a dense layer, then two of five experts by sigmoid and bias."""
    own = {
        "conv_L_cache": 3,
        "norm_eps": 1e-5,
        "layer_types": ["full_attention" if layer == 1 else "conv" for layer in range(sizes.layers)],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "num_dense_layers": 1,
        "norm_topk_prob": True,
        "use_expert_bias": True,
    }
    return Lfm2MoeConfig(**sizes.common() | own | changes)


def qwen35(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Qwen 3.5: three layers with delta nets, then one with attention, which rotates a quarter of each head."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}
    own = {
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "layer_types": ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(sizes.layers)],
        "rope_parameters": rope,
    }
    return Qwen3_5TextConfig(**sizes.common() | own | changes)


def qwen35moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Qwen 3.5's mixture: two of five experts, and a wider shared one."""
    own = {
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": sizes.ffn_width,
        "shared_expert_intermediate_size": 2 * sizes.ffn_width,
    }
    config = Qwen3_5MoeTextConfig(**qwen35(sizes).to_dict() | own | changes)
    config._attn_implementation = "eager"
    return config


def qwen3next(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Qwen3-Next: like Qwen 3.5's mixture, with other projections of its delta nets."""
    like = qwen35moe(sizes).to_dict()
    kept = {key: like[key] for key in like if key.startswith(("linear_", "num_experts", "moe_", "shared_"))}
    rope = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    own = {"head_dim": 32, "layer_types": like["layer_types"], "rope_parameters": rope, "norm_topk_prob": True}
    return Qwen3NextConfig(**sizes.common() | kept | own | changes)


def all_active(config: Callable[..., PretrainedConfig]) -> Callable[[Sizes], PretrainedConfig]:
    """Three experts, all active for every token: rounding cannot select others, which would change states for good."""
    return lambda sizes: config(sizes, num_experts=3, num_experts_per_tok=3)


def opt(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """OPT: learned positions, a tied head."""
    own = {"ffn_dim": sizes.ffn_width, "word_embed_proj_dim": sizes.width, "max_position_embeddings": OPT_CONTEXT}
    return OPTConfig(**sizes.common() | own | changes)


def relu_llama(sizes: Sizes, activation: str, **changes: object) -> PretrainedConfig:
    """Llama with another activation function."""
    return llama(sizes, hidden_act=activation, **changes)


def scaled(kind: str, **settings: object) -> dict[str, object]:
    """Rotary settings with scaling."""
    return {"rope_type": kind, "rope_theta": 10000.0, **settings}


QUIET = -1.6
"""Mean of biases with which nine of ten activations of a random layer are zero."""
OPT_RUNS = (("", N_TOKENS, OPT_CONTEXT),)

THRESHOLDS = (0.05, 0.2)
"""Thresholds for activations that are mostly below 1."""

YARN = scaled("yarn", factor=4.0, original_max_position_embeddings=64)
YARN_OWN = YARN | {"attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 2.0}
LLAMA3 = scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)

CASES = (
    Case("llama", "llama", llama, FORMATS, thresholds=THRESHOLDS),
    Case("llama-bias", "llama", lambda sizes: llama(sizes, attention_bias=True, mlp_bias=True), sizes=SMALL),
    Case("llama-implicit", "llama", lambda sizes: llama(sizes, head_dim=None), sizes=SQUARE),
    Case("llama-llama3", "llama", lambda sizes: llama(sizes, rope_parameters=LLAMA3), sizes=SMALL),
    Case(
        "llama-linear", "llama", lambda sizes: llama(sizes, rope_parameters=scaled("linear", factor=2.5)), sizes=SMALL
    ),
    Case("llama-yarn", "llama", lambda sizes: llama(sizes, rope_parameters=YARN), sizes=SMALL),
    Case("mistral-window", "llama", mistral, sizes=SMALL),
    Case("qwen2", "qwen2", qwen2, FORMATS[:4]),
    Case("qwen2", "qwen2", lambda sizes: qwen2(sizes, tie_word_embeddings=True), ("k",), WIDE_SQUARE, turn=1),
    Case("qwen2-yarn", "qwen2", lambda sizes: qwen2(sizes, rope_parameters=YARN_OWN), ("q8_0",), SQUARE),
    Case("qwen3", "qwen3", qwen3, ("f32", "bf16", "q8_0", "q4_0", "k"), turn=2),
    Case("phi3", "phi3", phi3, FORMATS[:4]),
    Case("phi3", "phi3", lambda sizes: phi3(sizes, tie_word_embeddings=True), ("k",), WIDE_SQUARE, turn=2),
    Case("phi3-window", "phi3", lambda sizes: phi3(sizes, sliding_window=20), ("q8_0",), SQUARE),
    Case("phi3-longrope", "phi3", phi3_longrope, ("q8_0",), SQUARE, runs=(("short", 48, 64), ("long", N_TOKENS, 256))),
    Case("gemma2", "gemma2", gemma2, ("f32", "bf16", "q8_0", "q4_0", "k"), turn=4, thresholds=THRESHOLDS),
    Case("gemma3", "gemma3", gemma3, ("f32", "bf16", "q8_0", "q4_0"), PERIOD),
    Case("gemma3", "gemma3", gemma3, ("k",), turn=3),
    Case("qwen3moe", "qwen3moe", qwen3moe, ("f32", "bf16", "q8_0", "q4_0", "k"), turn=3),
    Case("mixtral", "llama", mixtral, ("f16", "q8_0", "q4_0"), turn=3),
    Case("qwen2moe", "qwen2moe", qwen2moe, ("f32", "q8_0", "q4_0", "bf16"), SQUARE),
    Case("qwen2moe", "qwen2moe", qwen2moe, ("k",), WIDE_SQUARE, turn=4),
    Case("olmoe", "olmoe", olmoe, ("f32",), SQUARE),
    Case("olmoe", "olmoe", olmoe, ("q8_0", "q4_0", "f16"), EVEN),
    Case("olmoe", "olmoe", olmoe, ("k",), WIDE_SQUARE, turn=2),
    Case("opt", "opt", opt, FORMATS[:4], runs=OPT_RUNS),
    Case("opt", "opt", opt, ("k",), WIDE_SQUARE, turn=3, runs=OPT_RUNS),
    Case("opt-sparse", "opt", opt, ("q4_0",), quiet=QUIET, runs=OPT_RUNS),
    Case("llama-relu", "llama", lambda sizes: relu_llama(sizes, "relu"), ("f16", "q4_0")),
    Case(
        "llama-relu-sparse",
        "llama",
        lambda sizes: relu_llama(sizes, "relu", mlp_bias=True),
        ("q4_1", "q8_0"),
        SMALL,
        quiet=QUIET,
    ),
    Case("llama-relu2", "llama", lambda sizes: relu_llama(sizes, "relu2"), ("q8_0", "k"), turn=1),
    Case("gpt-oss", "gpt-oss", gpt_oss, ("f32", "bf16", "q8_0", "q4_0", "k"), turn=3),
    Case("lfm2", "lfm2", lfm2, ("f32", "bf16", "q8_0", "q4_0"), HYBRID),
    Case("lfm2", "lfm2", lfm2, ("k",), WIDE_HYBRID, turn=4),
    Case("lfm2moe", "lfm2moe", lfm2moe, ("f32", "bf16", "q8_0", "q4_0"), HYBRID),
    Case("lfm2moe", "lfm2moe", lfm2moe, ("k",), WIDE_HYBRID, turn=2),
    Case("qwen35", "qwen35", qwen35, ("f32", "bf16"), DELTA),
    Case("qwen35", "qwen35", qwen35, ("q8_0", "q4_0"), ROUNDED_DELTA),
    Case("qwen35", "qwen35", qwen35, ("k",), WIDE_DELTA, turn=1),
    Case("qwen35moe", "qwen35moe", qwen35moe, ("f32", "bf16"), NARROW_DELTA),
    Case("qwen35moe", "qwen35moe", all_active(qwen35moe), ("q8_0", "q4_0"), ROUNDED_NARROW),
    Case("qwen35moe", "qwen35moe", all_active(qwen35moe), ("k",), WIDE_DELTA),
    Case("qwen3next", "qwen3next", qwen3next, ("f32", "bf16"), NARROW_DELTA),
    Case("qwen3next", "qwen3next", all_active(qwen3next), ("q8_0", "q4_0"), ROUNDED_NARROW),
    Case("qwen3next", "qwen3next", all_active(qwen3next), ("k",), WIDE_DELTA, turn=3),
)
