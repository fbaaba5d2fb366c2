"""Families as published: configuration, class, tokenizer, and what accompanies the weights.

In: nothing. Out: one `Published` per family, from which a tiny random checkpoint is made. Does not depend on GGUF.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transformers import (
    PretrainedConfig,
    Qwen2VLConfig,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX as QWEN35

from goldens import (
    cases,
    encoder_cases,
    extras,
    further_cases,
    further_mixtures,
    gemma3n,
    gemma4,
    mixture_cases,
    recurrent,
    state_spaces,
)
from goldens.encoder_cases import BYTE_IDS
from goldens.small_tokenizers import (
    AFMOE,
    AFMOE_FIRST,
    GPT4O,
    LLAMA3,
    VOCABULARY,
    Kind,
    byte_level,
    ending_pieces,
    pieces,
    spaced,
    unigram,
    word_piece,
)

SMALL = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=32)
SQUARE = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=32)
SIX = cases.Sizes(width=48, heads=6, kv_heads=6, head_width=8, ffn_width=192)
"""Heads that are no power of two."""
SMALL_SQUARE = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=8, ffn_width=32)
PERIODIC = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=32, layers=5)
PERIOD = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=16, layers=7)
FOUR = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=64, layers=4)
FIVE = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=32, layers=5)
WIDE = cases.Sizes(width=64, heads=4, kv_heads=2, head_width=16, ffn_width=32, layers=3)
HYBRID = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=16, ffn_width=32, layers=3)
DELTA = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=32, ffn_width=32)
MIXED = cases.Sizes(width=32, heads=4, kv_heads=2, head_width=16, ffn_width=16)
MIXED_DELTA = cases.Sizes(width=32, heads=2, kv_heads=1, head_width=32, ffn_width=16)
TURNS = {"layer_types": ["linear_attention", "full_attention"]}
FEW = {"num_experts": 3, "num_experts_per_tok": 2}
PIECE_IDS = {"vocab_size": VOCABULARY, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
N_TOKENS = 72
N_FAR = 200
"""Tokens enough for distances that share the last bucket of T5's biases."""
Config = Callable[[], PretrainedConfig]


@dataclass(frozen=True, slots=True)
class Published:
    """A family: `model` is its class in transformers, `options` are for llama.cpp's converter.

    `beside` adds to a checkpoint what transformers does not write. `pooling`: how hidden rows become an embedding, for
    models without logits; `ranks`: it scores pairs of texts. `kept`: its file is stored with the tests.
    `n_tokens`: length of the text that is judged.
    """

    name: str
    config: Config
    tokenizer: Kind
    model: str = "AutoModelForCausalLM"
    options: tuple[str, ...] = ()
    beside: tuple[extras.Extra, ...] = ()
    pooling: str | None = None
    ranks: bool = False
    kept: bool = True
    n_tokens: int = N_TOKENS


def _vision(config: type[PretrainedConfig], text: PretrainedConfig, vision: dict[str, object]) -> PretrainedConfig:
    """The configuration of a vision model, with the text part's configuration in it."""
    made = config(text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=text.tie_word_embeddings)
    made.text_config._attn_implementation = "eager"
    return made


SEEING = {"depth": 1, "num_heads": 2, "in_channels": 3, "patch_size": 4, "spatial_merge_size": 2}


def _seeing(width: int, **more: object) -> dict[str, object]:
    """A tiny vision part for a text part of the given width."""
    own = {"hidden_size": 16, "intermediate_size": 16, "out_hidden_size": width, "num_position_embeddings": 16}
    return SEEING | own | {"temporal_patch_size": 2} | more


def _positions(*sections: int, **more: object) -> dict[str, object]:
    """Rotary settings that divide the pairs among three positions."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections), **more}}


def qwen2vl() -> PretrainedConfig:
    """Qwen2-VL, whose text part is Qwen 2's."""
    text = cases.qwen2(SQUARE, **BYTE_IDS, **_positions(4, 2, 2))
    vision = {**SEEING, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}
    return _vision(Qwen2VLConfig, text, vision)


def qwen3vl() -> PretrainedConfig:
    """Qwen3-VL, which feeds what it sees to the first layers too."""
    text = cases.qwen3(SMALL, **BYTE_IDS, **_positions(4, 2, 2, mrope_interleaved=True))
    return _vision(Qwen3VLConfig, text, _seeing(SMALL.width, deepstack_visual_indexes=[0]))


def qwen3vlmoe() -> PretrainedConfig:
    """Qwen3-VL's mixture, whose experts' matrices are published with columns first."""
    text = cases.qwen3moe(
        SMALL, **BYTE_IDS, **FEW, moe_intermediate_size=48, **_positions(4, 2, 2, mrope_interleaved=True)
    )
    return _vision(Qwen3VLMoeConfig, text, _seeing(SMALL.width, deepstack_visual_indexes=[0]))


def _qwen35(kind: type[PretrainedConfig], text: PretrainedConfig) -> PretrainedConfig:
    """Qwen 3.5 as published: with a vision part, and one more layer that predicts a further token."""
    made = _vision(kind, text, _seeing(text.hidden_size, deepstack_visual_indexes=[]))
    made.text_config.mtp_num_hidden_layers = 1
    return made


def _longrope() -> PretrainedConfig:
    """Phi 3 with LongRoPE, over whole heads."""
    made = cases.phi3_longrope(SQUARE)
    made.update(PIECE_IDS)
    return made


def _of(config: Callable[..., PretrainedConfig], sizes: cases.Sizes, **changes: object) -> Config:
    return lambda: config(sizes, **{**BYTE_IDS, **changes})


QWEN, SEEN = byte_level(QWEN2, "qwen2"), byte_level(QWEN35, "qwen35")
LFM = byte_level(LLAMA3, "lfm2", begin="<|endoftext|>")
LLAMA = byte_level(LLAMA3, "llama-bpe", begin="<|endoftext|>")
GPT2 = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
OLMO = byte_level(GPT2, "olmo")
GEMMA = pieces(prefix=False)
NOMIC = (extras.older_names, extras.pool_by("mean"))
AS_WRITTEN = ("--as-written",)
BEGINS = ("--begins",)
FUSED = ("--fuse-qkv", "--fuse-gate-up-exps")
MTP = (extras.guess_one_more,)
OLDER = (extras.older_layer_types,)

LATENT = cases.Sizes(width=32, heads=2, kv_heads=2, head_width=16, ffn_width=32)
GLM4 = byte_level(LLAMA3, "glm4", marks=("[gMASK]", "<|user|>", "<|observation|>"))
HUNYUAN = byte_level(LLAMA3, "hunyuan-dense")

PUBLISHED = (
    Published(
        "llama",
        _of(cases.llama, SMALL, rope_parameters=cases.LLAMA3),
        byte_level(LLAMA3, "llama-bpe", begin="<|endoftext|>"),
    ),
    Published("qwen2moe", _of(cases.qwen2moe, MIXED, **FEW), QWEN),
    Published("qwen3moe", _of(cases.qwen3moe, MIXED, **FEW), QWEN),
    Published("qwen2vl", qwen2vl, QWEN, "Qwen2VLForConditionalGeneration"),
    Published("qwen3vl", qwen3vl, QWEN, "Qwen3VLForConditionalGeneration"),
    Published("qwen3vlmoe", qwen3vlmoe, QWEN, "Qwen3VLMoeForConditionalGeneration", beside=(extras.columns_first,)),
    Published(
        "qwen35",
        lambda: _qwen35(Qwen3_5Config, cases.qwen35(DELTA, **BYTE_IDS, **TURNS)),
        SEEN,
        "Qwen3_5ForConditionalGeneration",
        beside=MTP,
    ),
    Published(
        "qwen35moe",
        lambda: _qwen35(Qwen3_5MoeConfig, cases.qwen35moe(MIXED_DELTA, **BYTE_IDS, **TURNS, **FEW)),
        SEEN,
        "Qwen3_5MoeForConditionalGeneration",
        beside=MTP,
    ),
    Published("qwen3next", _of(cases.qwen3next, MIXED_DELTA, **TURNS, **FEW), QWEN, options=FUSED, beside=MTP),
    Published("lfm2", _of(cases.lfm2, HYBRID), LFM),
    Published("lfm2moe", _of(cases.lfm2moe, HYBRID), LFM),
    Published("gpt-oss", _of(cases.gpt_oss, SMALL), byte_level(GPT4O, "gpt-4o"), beside=(extras.pack_experts,)),
    Published("olmoe", _of(cases.olmoe, cases.EVEN, **FEW, intermediate_size=16), OLMO),
    Published("phi3", _longrope, pieces(prefix=True)),
    Published("gemma3", _of(cases.gemma3, PERIOD, **PIECE_IDS), GEMMA),
    Published(
        "gemma-embedding",
        _of(cases.gemma3, PERIOD, **PIECE_IDS, use_bidirectional_attention=True, sliding_window=24),
        GEMMA,
        "Gemma3TextModel",
        ("--sentence-transformers-dense-modules",),
        (extras.keep_window, extras.pool_by("mean"), extras.two_products),
        "mean",
    ),
    Published("bert", encoder_cases.bert, word_piece(), "BertModel", beside=(extras.pool_by("cls"),), pooling="cls"),
    Published("nomic-bert", encoder_cases.nomic, word_piece(), "NomicBertModel", beside=NOMIC, pooling="mean"),
    Published(
        "eurobert", encoder_cases.eurobert, QWEN, "EuroBertModel", beside=(extras.pool_by("mean"),), pooling="mean"
    ),
    Published(
        "modern-bert",
        encoder_cases.modern_bert,
        byte_level(GPT2, "modern-bert", begin="<|endoftext|>", end="<|im_end|>"),
        "ModernBertModel",
        beside=(extras.pool_by("cls"),),
        pooling="cls",
    ),
    Published("qwen3-reranker", _of(cases.qwen3, SMALL, max_position_embeddings=1024), QWEN, ranks=True),
    Published(
        "xlm-roberta-reranker", encoder_cases.xlm_roberta, unigram(), "XLMRobertaForSequenceClassification", ranks=True
    ),
    *(
        Published(name, _of(getattr(further_cases, name), SQUARE), QWEN, kept=False)
        for name in (
            *("granite", "granitemoe", "smollm3", "olmo", "olmo2", "olmo3", "command_r", "arcee", "seed_oss"),
            *("exaone4", "exaone4_windows", "stablelm", "starcoder2"),
        )
    ),
    Published("glm4", _of(further_cases.glm4, SMALL), byte_level(LLAMA3, "glm4", marks=("<|user|>",)), kept=False),
    Published("gemma3n", _of(gemma3n.small, FIVE, **PIECE_IDS, vocab_size_per_layer_input=VOCABULARY), GEMMA),
    Published("gemma4", _of(gemma4.dense, FOUR, **PIECE_IDS), spaced()),
    Published(
        "gemma4-small",
        _of(gemma4.small, FIVE, **PIECE_IDS, vocab_size_per_layer_input=VOCABULARY),
        spaced(),
    ),
    Published("gemma4-moe", _of(gemma4.mixture, FOUR, **PIECE_IDS), spaced()),
    Published("gemma", _of(further_cases.gemma, SMALL, **PIECE_IDS), GEMMA, kept=False),
    Published("nemotron", _of(further_cases.nemotron, SQUARE, **PIECE_IDS), pieces(prefix=True), kept=False),
    Published("ernie4_5", _of(further_cases.ernie, SMALL, **PIECE_IDS), pieces(prefix=True), kept=False),
    Published("phi2", _of(further_cases.phi2, SQUARE, intermediate_size=4 * SQUARE.width), QWEN, kept=False),
    Published("cohere2", _of(further_cases.cohere2, SQUARE), QWEN, beside=(extras.rotate_all,), kept=False),
    Published("dots1", _of(further_cases.dots1, PERIODIC, **FEW, moe_intermediate_size=16), QWEN),
    Published("hunyuan-dense", _of(further_cases.hunyuan_dense, SMALL), HUNYUAN),
    Published("ernie4_5-moe", _of(further_cases.ernie_moe, PERIODIC, **PIECE_IDS), pieces(prefix=True)),
    Published(
        "afmoe",
        _of(further_cases.afmoe, PERIODIC, **FEW, moe_intermediate_size=16, route_norm=True, score_func="sigmoid"),
        byte_level(AFMOE, "afmoe", first=AFMOE_FIRST),
    ),
    Published("gpt2", _of(further_cases.gpt2, SQUARE), QWEN),
    Published("starcoder", _of(further_cases.starcoder, SMALL_SQUARE), QWEN),
    Published("mistral3", _of(further_cases.mistral3, SMALL), QWEN),
    Published("apertus", _of(further_cases.apertus, SQUARE), QWEN),
    Published("falcon", _of(further_cases.falcon, SQUARE), QWEN),
    Published("falcon-two-norms", _of(further_cases.falcon_two_norms, SMALL_SQUARE), QWEN),
    Published("jais2", _of(further_cases.jais2, SQUARE), QWEN),
    Published("chatglm", _of(further_cases.chatglm, SMALL_SQUARE), byte_level(LLAMA3, "glm4", marks=("<|user|>",))),
    Published("mellum", _of(further_cases.mellum, PERIODIC, moe_intermediate_size=16), QWEN),
    Published("bloom", _of(further_cases.bloom, SIX), QWEN),
    Published("mpt", _of(further_cases.mpt, SMALL_SQUARE), QWEN, beside=(extras.name_class("MPTForCausalLM"),)),
    Published("command-r-plus", _of(further_cases.command_r_plus, SMALL_SQUARE), QWEN),
    Published("deepseek2", _of(mixture_cases.deepseek3, LATENT), QWEN, kept=False),
    Published("deepseek2-lite", _of(mixture_cases.deepseek2_lite, LATENT), QWEN),
    Published("glm4-moe-lite", _of(mixture_cases.glm4_moe_lite, LATENT), GLM4, kept=False),
    Published("minimax-m2", _of(mixture_cases.minimax_m2, SMALL), QWEN),
    Published("hy-v3", _of(mixture_cases.hy_v3, SMALL), QWEN),
    Published("exaone-moe", _of(mixture_cases.exaone_moe, PERIODIC), QWEN),
    Published("granitehybrid", _of(state_spaces.granite_hybrid, HYBRID), QWEN, beside=OLDER),
    Published(
        "granitehybrid-moe",
        _of(state_spaces.granite_hybrid_moe, HYBRID, intermediate_size=16),
        QWEN,
        beside=OLDER,
    ),
    Published("falcon-h1", _of(state_spaces.falcon_h1, SQUARE), QWEN),
    Published("falcon-h1-normed", _of(state_spaces.falcon_h1_normed, SQUARE), QWEN, kept=False),
    Published(
        "nemotron-h",
        _of(state_spaces.nemotron_h, PERIODIC),
        QWEN,
        options=AS_WRITTEN,
        beside=(extras.dense_pattern,),
    ),
    Published("nemotron-h-moe", _of(state_spaces.nemotron_h_moe, PERIODIC), QWEN, options=AS_WRITTEN),
    Published("nemotron-h-latent", _of(state_spaces.nemotron_h_latent, WIDE), QWEN, options=AS_WRITTEN),
    Published("mamba2", _of(recurrent.mamba2, HYBRID), QWEN),
    Published("mamba", _of(recurrent.mamba, HYBRID), QWEN),
    Published("falcon-mamba", _of(recurrent.falcon_mamba, HYBRID), QWEN),
    Published("jamba", _of(recurrent.jamba, HYBRID, **PIECE_IDS), pieces(prefix=True)),
    Published(
        "kimi-linear",
        _of(recurrent.kimi_linear, LATENT, num_hidden_layers=3),
        QWEN,
        options=AS_WRITTEN,
        beside=(extras.kimi_names,),
    ),
    Published("llama4", _of(further_mixtures.llama4, FIVE), LLAMA, beside=(extras.name_class("Llama4ForCausalLM"),)),
    Published("llama4-maverick", _of(further_mixtures.maverick, FOUR), LLAMA, kept=False),
    Published("dbrx", _of(further_mixtures.dbrx, SMALL_SQUARE), QWEN),
    Published(
        "phimoe",
        _of(further_mixtures.phimoe, SQUARE, **PIECE_IDS),
        pieces(prefix=True),
        beside=(extras.name_class("PhiMoEForCausalLM"),),
    ),
    Published("laguna", _of(further_mixtures.laguna, FIVE), QWEN),
    Published("laguna-elements", _of(further_mixtures.laguna_elements, FIVE), QWEN, kept=False),
    Published("cohere2moe", _of(further_mixtures.cohere2moe, HYBRID), QWEN),
    Published(
        "mistral4",
        _of(further_mixtures.mistral4, LATENT),
        QWEN,
        "Mistral4ForCausalLM",
        beside=(extras.name_class("Mistral3ForConditionalGeneration"),),
    ),
    Published("deepseek2-groups", _of(further_mixtures.deepseek2_groups, LATENT), QWEN),
    Published("olmo-clipped", _of(further_mixtures.clipped_olmo, SQUARE), QWEN),
    Published(
        "mpt-clipped",
        _of(further_mixtures.clipped_mpt, SMALL_SQUARE),
        QWEN,
        beside=(extras.name_class("MPTForCausalLM"),),
        kept=False,
    ),
    Published("t5encoder", encoder_cases.t5, ending_pieces(), "T5EncoderModel", pooling="mean", n_tokens=N_FAR),
    Published(
        "t5encoder-gated",
        encoder_cases.umt5,
        ending_pieces(),
        "UMT5EncoderModel",
        beside=(extras.name_class("T5EncoderModel"),),
        pooling="mean",
        n_tokens=N_FAR,
    ),
    Published(
        "modern-bert-reranker",
        encoder_cases.modern_bert_reranker,
        byte_level(GPT2, "modern-bert", begin="<|endoftext|>", end="<|im_end|>"),
        "ModernBertForSequenceClassification",
        ranks=True,
    ),
    Published(
        "distilbert-reranker", encoder_cases.distilbert, word_piece(), "DistilBertForSequenceClassification", ranks=True
    ),
    Published("deepseek32", _of(mixture_cases.deepseek32, LATENT), LLAMA, options=BEGINS),
    Published("glm-dsa", _of(mixture_cases.glm_dsa, LATENT), GLM4),
    Published(
        "gemma4-unified",
        _of(gemma4.unified, FOUR, **PIECE_IDS),
        spaced(),
        "Gemma4UnifiedForConditionalGeneration",
        options=("--as-written",),
        beside=(extras.without_rows_and_experts,),
    ),
)
