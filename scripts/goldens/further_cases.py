"""Golden cases of families with special features: scales, parallel branches, layers without rotation, per-layer sizes.

In: sizes. Out: configurations of tiny models, as in `cases`, with three files each: float32, Q8_0, and the other kinds
of formats in turn. Last, formats of few bits.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import (
    AfmoeConfig,
    ApertusConfig,
    ArceeConfig,
    AutoModelForCausalLM,
    BitNetConfig,
    BloomConfig,
    Cohere2Config,
    CohereConfig,
    Dots1Config,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    Exaone4Config,
    FalconConfig,
    GemmaConfig,
    Glm4Config,
    Glm4MoeConfig,
    GlmConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GPTNeoXConfig,
    GraniteConfig,
    GraniteMoeSharedConfig,
    HunYuanDenseV1Config,
    Jais2Config,
    MellumConfig,
    Ministral3Config,
    MptConfig,
    NemotronConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoConfig,
    PhiConfig,
    PretrainedConfig,
    Qwen3Config,
    SeedOssConfig,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from goldens import gemma3n, gemma4, minicpm3
from goldens.cases import LLAMA3, LOW, SMALL, SQUARE, WIDE_SQUARE, YARN, Case, Sizes, llama, mixtral

PERIODIC = Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=64, layers=5)
"""A period of four layers and one more layer."""
GROWING = Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=96, layers=3)
"""The largest of the layers' sizes."""
WIDE_GROWING = Sizes(width=256, heads=8, kv_heads=4, head_width=32, ffn_width=256, layers=2)
TWO_TURNS = Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=64, layers=4)
FEW_OWN = Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=32, layers=5)
TWO_KINDS = Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=96)
WIDE_KINDS = Sizes(width=256, heads=8, kv_heads=2, head_width=32, ffn_width=64)
SCALES = {"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "attention_multiplier": 0.4, "logits_scaling": 0.7}
WINDOW = 12
HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


def granite(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Granite: four scales."""
    return GraniteConfig(**sizes.common() | SCALES | {"tie_word_embeddings": True} | changes)


def granitemoe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Granite's mixture: two of four experts, and a narrower shared one."""
    own = {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 32}
    return GraniteMoeSharedConfig(**sizes.common() | SCALES | own | changes)


def smollm3(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """SmolLM 3: every fourth layer without rotation."""
    return SmolLM3Config(**sizes.common() | {"use_sliding_window": False} | changes)


def olmo(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """OLMo: norms without weights."""
    return OlmoConfig(**sizes.common() | changes)


def olmo2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """OLMo 2: norms after the branches, and norms over all query heads and all key heads."""
    return Olmo2Config(**sizes.common() | {"rms_norm_eps": 1e-6} | changes)


def olmo3(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """OLMo 3: windows in three of four layers, and scaled rotation in the others."""
    rope = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    return Olmo3Config(**sizes.common() | {"sliding_window": WINDOW, "rope_parameters": rope} | changes)


def command_r(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Command R: parallel branches, LayerNorms without biases, scaled logits."""
    return CohereConfig(**sizes.common() | {"logit_scale": 0.8} | changes)


def cohere2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Command R7B: windows in three of four layers; only those are rotated."""
    return Cohere2Config(**sizes.common() | {"logit_scale": 0.8, "sliding_window": WINDOW} | changes)


def phi2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Phi 2: one norm for both branches; half of each head is rotated."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    own = {"num_key_value_heads": sizes.heads, "rope_parameters": rope}
    return PhiConfig(**sizes.common() | own | changes)


def gptneox(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """GPT-NeoX: two norms of the same rows; a quarter of each head is rotated."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    common = {key: value for key, value in sizes.common().items() if key != "num_key_value_heads"}
    return GPTNeoXConfig(**common | {"rope_parameters": rope} | changes)


def glm4moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """GLM 4.5: a dense layer, then three of twelve experts, from two of four groups, and a shared one."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    own = {
        "head_dim": sizes.head_width,
        "moe_intermediate_size": 32,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "attention_bias": True,
        "routed_scaling_factor": 1.5,
        "rope_parameters": rope,
    }
    return Glm4MoeConfig(**sizes.common() | own | changes)


def gemma(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Gemma: scaled embeddings, GELU."""
    return GemmaConfig(**sizes.common() | {"head_dim": sizes.head_width, "tie_word_embeddings": True} | changes)


def arcee(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """AFM: squared ReLU without a gate."""
    return ArceeConfig(**sizes.common() | changes)


def ernie(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """ERNIE 4.5: adjacent rotary pairs."""
    return Ernie4_5Config(**sizes.common() | {"head_dim": sizes.head_width} | changes)


def seed_oss(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Seed-OSS: biases of queries, keys and values."""
    own = {"head_dim": sizes.head_width, "attention_bias": True, "attention_out_bias": False, "mlp_bias": False}
    return SeedOssConfig(**sizes.common() | own | changes)


def exaone4(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """EXAONE 4 without windows: norms after branches, head norms."""
    kinds = ["full_attention"] * sizes.layers
    own = {"head_dim": sizes.head_width, "sliding_window": None, "layer_types": kinds}
    return Exaone4Config(**sizes.common() | own | changes)


def exaone4_windows(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """EXAONE 4 32B: windows and rotation in three of four layers."""
    kinds = ["full_attention" if number % 4 == 3 else "sliding_attention" for number in range(sizes.layers)]
    return exaone4(sizes, sliding_window=WINDOW, layer_types=kinds, **changes)


def glm4(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """GLM 4: norms around both branches, half of each head rotated."""
    own = {"head_dim": sizes.head_width, "attention_bias": True, "rope_parameters": HALF}
    return Glm4Config(**sizes.common() | own | changes)


def stablelm(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """StableLM 2: LayerNorms, biases, a part of each head rotated."""
    return StableLmConfig(**sizes.common() | {"use_qkv_bias": True, "rope_parameters": HALF} | changes)


def nemotron(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Nemotron: LayerNorms of 1 + weight, squared ReLU, half of each head rotated."""
    own = {"head_dim": sizes.head_width, "rope_parameters": HALF}
    return NemotronConfig(**sizes.common() | own | changes)


def starcoder2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """StarCoder 2: LayerNorms, biases everywhere, GELU without a gate."""
    return Starcoder2Config(**sizes.common() | {"sliding_window": None, "use_bias": True} | changes)


def dots1(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """dots.llm1: a dense layer, then two of five experts and a shared one."""
    own = {"head_dim": sizes.head_width, "n_routed_experts": 5, "num_experts_per_tok": 2, "n_shared_experts": 1}
    own |= {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5}
    return Dots1Config(**sizes.common() | own | changes)


def hunyuan_dense(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Hunyuan: head norms after the rotation."""
    return HunYuanDenseV1Config(**sizes.common() | {"head_dim": sizes.head_width} | changes)


def ernie_moe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """ERNIE 4.5's mixture: a dense layer, then two of five experts and two shared ones."""
    own = {"moe_num_experts": 5, "moe_k": 2, "moe_num_shared_experts": 2, "moe_intermediate_size": 16}
    own |= {"moe_layer_start_index": 1, "moe_layer_interval": 1}
    return Ernie4_5_MoeConfig(**sizes.common() | own | changes)


def gpt2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """GPT-2: learned positions."""
    own = {"n_embd": sizes.width, "n_layer": sizes.layers, "n_head": sizes.heads, "n_inner": 4 * sizes.width}
    return GPT2Config(**own | {"n_positions": 256, "n_ctx": 256} | changes)


def starcoder(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """StarCoder: GPT-2 with one head of keys."""
    own = {"n_embd": sizes.width, "n_layer": sizes.layers, "n_head": sizes.heads, "n_positions": 256}
    return GPTBigCodeConfig(**own | {"n_inner": 4 * sizes.width} | changes)


def mistral3(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Ministral 3: queries grow three times in the text, as its original context is short."""
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 20}
    rope |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}
    return Ministral3Config(**sizes.common() | {"head_dim": sizes.head_width, "rope_parameters": rope} | changes)


def apertus(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Apertus: xIELU, head norms, Llama 3's rotation."""
    return ApertusConfig(**sizes.common() | {"rope_parameters": LLAMA3} | changes)


def falcon(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Falcon 7B: one norm for both branches, one head of keys."""
    own = {"hidden_size": sizes.width, "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads}
    return FalconConfig(**own | {"num_kv_heads": 1} | changes)


def falcon_two_norms(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Falcon 40B: a norm for each branch, queries grouped with their keys and values."""
    return falcon(sizes, new_decoder_architecture=True, num_kv_heads=sizes.kv_heads, **changes)


def jais2(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Jais 2: LayerNorms, biases, squared ReLU without a gate."""
    return Jais2Config(**sizes.common() | changes)


def chatglm(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """GLM 4 (the first): half of each head rotated in adjacent pairs."""
    own = {"head_dim": sizes.head_width, "attention_bias": True, "rope_parameters": HALF, "rms_norm_eps": 1e-5}
    return GlmConfig(**sizes.common() | own | changes)


def mellum(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Mellum 2: two of five experts; windows in three of four layers, where the rotation is not scaled."""
    own = {"head_dim": sizes.head_width, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": WINDOW}
    own |= {"layer_types": ["full_attention" if n % 4 == 3 else "sliding_attention" for n in range(sizes.layers)]}
    plain = {"rope_type": "default", "rope_theta": YARN["rope_theta"]}
    own |= {"rope_parameters": {"full_attention": YARN, "sliding_attention": plain}}
    return MellumConfig(**sizes.common() | own | changes)


def bloom(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """BLOOM: ALiBi, normed embeddings."""
    return BloomConfig(**{"hidden_size": sizes.width, "n_layer": sizes.layers, "n_head": sizes.heads} | changes)


def mpt(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """MPT: ALiBi, LayerNorms without biases."""
    own = {"d_model": sizes.width, "n_layers": sizes.layers, "n_heads": sizes.heads}
    return MptConfig(**own | {"max_seq_len": 256} | changes)


def command_r_plus(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Command R+: LayerNorms of heads."""
    return command_r(sizes, use_qk_norm=True, **changes)


def bitnet(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """BitNet 2B4T: norms before the last products, squared ReLU."""
    return BitNetConfig(**sizes.common() | {"tie_word_embeddings": True} | changes)


def afmoe(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """Trinity: a dense layer, then two of five experts, and a shared one that is as wide as two."""
    own = {
        "head_dim": sizes.head_width,
        "moe_intermediate_size": 32,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "num_shared_experts": 2,
        "num_dense_layers": 1,
        "route_scale": 2.5,
        "sliding_window": WINDOW,
        "mup_enabled": True,
        "tie_word_embeddings": False,
    }
    return AfmoeConfig(**sizes.common() | own | changes)


def openelm(sizes: Sizes, **changes: object) -> PretrainedConfig:
    """OpenELM in Qwen 3's terms, whose layers it has, except that they grow to `sizes`."""
    steps = range(1, sizes.layers + 1)
    config = Qwen3Config(**sizes.common() | {"head_dim": sizes.head_width, "tie_word_embeddings": True} | changes)
    config.layer_ffn = [sizes.ffn_width * step // sizes.layers for step in steps]
    config.layer_heads = [sizes.heads if step > 1 else sizes.heads // 2 for step in steps]
    config.layer_kv_heads = [sizes.kv_heads if step == sizes.layers else sizes.kv_heads // 2 for step in steps]
    return config


def growing(config: Any) -> torch.nn.Module:
    """Qwen 3 with layers of different sizes."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    sizes = zip(config.layer_heads, config.layer_kv_heads, config.layer_ffn, strict=True)
    for number, (heads, kv_heads, ffn) in enumerate(sizes):
        own = copy.deepcopy(config)
        own.num_attention_heads, own.num_key_value_heads, own.intermediate_size = heads, kv_heads, ffn
        own._attn_implementation = "eager"
        model.model.layers[number] = Qwen3DecoderLayer(own, number)
    return model.to(torch.float32)


FLOATS, MIXED = ("f32", "q8_0"), ("mix",)
FURTHER_CASES = (
    Case("granite", "granite", granite, FLOATS, SQUARE),
    Case("granite", "granite", granite, MIXED, WIDE_SQUARE),
    Case("granitemoe", "granitemoe", granitemoe, FLOATS, SQUARE),
    Case("granitemoe", "granitemoe", granitemoe, MIXED, WIDE_SQUARE, turn=1),
    Case("smollm3", "smollm3", smollm3, FLOATS, PERIODIC),
    Case("smollm3", "smollm3", smollm3, MIXED, WIDE_SQUARE, turn=2),
    Case("olmo", "olmo", olmo, FLOATS, SQUARE),
    Case("olmo", "olmo", olmo, MIXED, WIDE_SQUARE, turn=3),
    Case("olmo2", "olmo2", olmo2, FLOATS, SQUARE),
    Case("olmo2", "olmo2", olmo2, MIXED, WIDE_SQUARE),
    Case("olmo3", "olmo2", olmo3, FLOATS, PERIODIC),
    Case("command-r", "command-r", command_r, FLOATS, SQUARE),
    Case("command-r", "command-r", command_r, MIXED, WIDE_SQUARE, turn=1),
    Case("cohere2", "cohere2", cohere2, FLOATS, PERIODIC),
    Case("cohere2", "cohere2", cohere2, MIXED, WIDE_SQUARE, turn=2),
    Case("phi2", "phi2", phi2, FLOATS, SQUARE),
    Case("phi2", "phi2", phi2, MIXED, WIDE_SQUARE, turn=3),
    Case("gptneox", "gptneox", gptneox, FLOATS, SQUARE),
    Case("gptneox", "gptneox", gptneox, MIXED, WIDE_SQUARE),
    Case("gptneox-serial", "gptneox", lambda sizes: gptneox(sizes, use_parallel_residual=False), ("f32",), SQUARE),
    Case("glm4moe", "glm4moe", glm4moe, FLOATS, TWO_KINDS),
    Case("glm4moe", "glm4moe", glm4moe, MIXED, WIDE_KINDS, turn=1),
    Case("openelm", "openelm", openelm, FLOATS, GROWING, model=growing),
    Case("openelm", "openelm", openelm, MIXED, WIDE_GROWING, turn=2, model=growing),
    Case("minicpm3", "minicpm3", minicpm3.config, FLOATS, SMALL),
    Case("minicpm3", "minicpm3", minicpm3.config, MIXED, WIDE_SQUARE, turn=3),
    Case("gemma", "gemma", gemma, FLOATS, SMALL),
    Case("arcee", "arcee", arcee, FLOATS, SQUARE),
    Case("ernie4_5", "ernie4_5", ernie, FLOATS, SMALL),
    Case("seed_oss", "seed_oss", seed_oss, FLOATS, SMALL),
    Case("exaone4", "exaone4", exaone4, FLOATS, SQUARE),
    Case("exaone4-windows", "exaone4", exaone4_windows, ("f32",), PERIODIC),
    Case("glm4", "glm4", glm4, FLOATS, SMALL),
    Case("stablelm", "stablelm", stablelm, FLOATS, SQUARE),
    Case("stablelm-parallel", "stablelm", lambda sizes: stablelm(sizes, use_parallel_residual=True), ("f32",), SQUARE),
    Case("nemotron", "nemotron", nemotron, ("f32",), SQUARE),
    Case("starcoder2", "starcoder2", starcoder2, FLOATS, SQUARE),
    Case("afmoe", "afmoe", afmoe, FLOATS, PERIODIC),
    Case("afmoe", "afmoe", afmoe, MIXED, WIDE_KINDS, turn=2),
    Case("gemma3n", "gemma3n", gemma3n.small, FLOATS, FEW_OWN),
    Case("gemma4", "gemma4", gemma4.dense, FLOATS, TWO_TURNS),
    Case("gemma4-small", "gemma4", gemma4.small, FLOATS, FEW_OWN),
    Case("gemma4-moe", "gemma4", gemma4.mixture, ("f32",), TWO_TURNS),
    Case("gemma4-moe", "gemma4", lambda sizes: gemma4.mixture(sizes, top_k_experts=5), ("q8_0",), TWO_TURNS),
    Case("llama", "llama", llama, ("low",), LOW),
    Case("mixtral", "llama", mixtral, ("low",), LOW, turn=5),
    Case("bitnet", "bitnet", bitnet, ("f32",), SQUARE),
)
