"""Tiny models of rarer and newer families, judged by llama.cpp: keys and tensors of their files.

In: nothing. Out: one `Peer` per file, as in `peer_cases`.
"""

from __future__ import annotations

from collections.abc import Mapping

from goldens.peer_cases import (
    FFN,
    HEAD,
    HEAD_NORMS,
    HEADS,
    KV_HEADS,
    LLAMA,
    NORMS,
    SCALES,
    WIDTH,
    WINDOWS,
    Peer,
    Shape,
    Value,
    fused,
    heads_of,
    network,
    vectors,
)
from goldens.peer_mixtures import COUNT, COUNTS, EXPERTS, INNER, OF_SHARED, ROUTED, SHARED, WHOLE

NARROW = HEAD // 2
"""Width of values that are narrower than keys."""
SINKS = vectors("attn_sinks.weight", length=HEADS)
CHOICE = vectors("exp_probs_b.bias", length=COUNT)
POST_NORMS = vectors("post_attention_norm.weight", "post_ffw_norm.weight")
GATE: Mapping[str, Shape] = {"attn_gate.weight": (HEADS * HEAD, WIDTH)}
VISION: Mapping[str, Shape] = {
    "vis_attn_qkv.weight": (3 * HEADS * HEAD, WIDTH),
    "vis_attn_output.weight": (WIDTH, HEADS * HEAD),
    "vis_gate.weight": (FFN, WIDTH),
    "vis_up.weight": (FFN, WIDTH),
    "vis_down.weight": (WIDTH, FFN),
}
FUSED_ROUTED: Mapping[str, Shape] = {
    "ffn_gate_inp.weight": (COUNT, WIDTH),
    "ffn_gate_up_exps.weight": (COUNT, 2 * FFN, WIDTH),
    "ffn_down_exps.weight": (COUNT, WIDTH, FFN),
}
FUSED_SHARED: Mapping[str, Shape] = {
    "ffn_up_shexp.weight": (2 * INNER, WIDTH),
    "ffn_down_shexp.weight": (WIDTH, INNER),
}


def narrow_values(kv_heads: int) -> dict[str, Shape]:
    """Attention's matrices, with queries, keys and narrower values in one tensor."""
    rows = (HEADS + kv_heads) * HEAD + kv_heads * NARROW
    return {"attn_qkv.weight": (rows, WIDTH), "attn_output.weight": (WIDTH, HEADS * NARROW)}


MIMO: Mapping[str, Value] = {
    **WINDOWS,
    **COUNTS,
    "attention.sliding_window_pattern": [False, True, True],
    "attention.value_length": NARROW,
    "attention.value_scale": 0.7,
    "rope.dimension_count": HEAD // 2,
    "expert_feed_forward_length": INNER,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
}
SWASH: Mapping[str, Value] = {
    **SCALES,
    "attention.scale": 0.4,
    "attention.sliding_window": 12,
    "attention.sliding_window_pattern": [False, True, True],
    "attention.rope_pattern": [True, False, True],
    "rope.dimension_count": HEAD,
}
GLIMMER: Mapping[str, Value] = {
    "attention.sliding_window": 12,
    "rope.freq_base": 20000.0,
    "logit_scale": 0.8,
    "final_logit_softcapping": 4.0,
    **WHOLE,
}
RARER = (
    Peer(
        "mimo2",
        "mimo2",
        [
            NORMS | narrow_values(1) | network(),
            NORMS | narrow_values(KV_HEADS) | SINKS | ROUTED | CHOICE,
            NORMS | narrow_values(KV_HEADS) | SINKS | ROUTED | CHOICE,
        ],
        MIMO,
        kv_heads=[1, KV_HEADS, KV_HEADS],
    ),
    Peer("granite-swa", "granite_swa", [LLAMA | SINKS] * 3, SWASH),
    Peer(
        "granite-swa-moe",
        "granite_swa",
        [NORMS | heads_of() | SINKS | FUSED_ROUTED | FUSED_SHARED] * 3,
        SWASH | COUNTS | {"expert_shared_feed_forward_length": INNER},
    ),
    Peer("hunyuan-vl", "hunyuan_vl", [LLAMA | HEAD_NORMS] * 2, WHOLE | {"rope.scaling.alpha": 1000.0}),
    Peer("paddleocr", "paddleocr", [LLAMA] * 2, WHOLE | {"rope.dimension_sections": [2, 1, 1, 0]}),
    Peer("muse-glimmer", "muse-glimmer", [LLAMA | HEAD_NORMS | GATE | POST_NORMS] * 5, GLIMMER),
    Peer("cogvlm", "cogvlm", [NORMS | fused(kv_heads=HEADS) | network() | VISION] * 2, WHOLE, kv_heads=HEADS),
    Peer(
        "deepseek2-ocr",
        "deepseek2-ocr",
        [NORMS | heads_of(kv_heads=HEADS) | network(), EXPERTS | heads_of(kv_heads=HEADS) | SHARED],
        OF_SHARED | WHOLE | {"leading_dense_block_count": 1, "rope.freq_base": 10000.0},
        kv_heads=HEADS,
    ),
)
