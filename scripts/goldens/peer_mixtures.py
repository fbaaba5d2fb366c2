"""Tiny mixtures, and models with latent attention, of families or forms of files that transformers lacks.

In: nothing. Out: one `Peer` per file, as in `peer_cases`.
"""

from __future__ import annotations

from goldens.peer_cases import (
    FFN,
    HEAD,
    HEADS,
    LAYERS,
    LLAMA,
    NORMS,
    PLAIN,
    WIDTH,
    Peer,
    Shape,
    heads_of,
    network,
    vectors,
)

COUNT, INNER, RANK, PART = 4, 16, 24, 8
"""Experts and their width; width of latent rows, and of the plain and the rotated part of keys and of values."""
ROUTED: dict[str, Shape] = {
    "ffn_gate_inp.weight": (COUNT, WIDTH),
    "ffn_gate_exps.weight": (COUNT, INNER, WIDTH),
    "ffn_up_exps.weight": (COUNT, INNER, WIDTH),
    "ffn_down_exps.weight": (COUNT, WIDTH, INNER),
}
OF_ARCTIC: dict[str, Shape] = {
    "ffn_gate_inp.weight": (COUNT, WIDTH),
    "ffn_gate_exps.weight": (COUNT, FFN, WIDTH),
    "ffn_up_exps.weight": (COUNT, FFN, WIDTH),
    "ffn_down_exps.weight": (COUNT, WIDTH, FFN),
}
"""Experts of the width that is stated of the feed-forward network, which is as wide as the model."""
SHARED: dict[str, Shape] = {
    "ffn_gate_shexp.weight": (2 * INNER, WIDTH),
    "ffn_up_shexp.weight": (2 * INNER, WIDTH),
    "ffn_down_shexp.weight": (WIDTH, 2 * INNER),
}
EXPERTS = NORMS | heads_of() | ROUTED
LATENT: dict[str, Shape] = {
    "attn_q.weight": (HEADS * 2 * PART, WIDTH),
    "attn_kv_a_mqa.weight": (RANK + PART, WIDTH),
    "attn_kv_a_norm.weight": (RANK,),
    "attn_kv_b.weight": (HEADS * 2 * PART, RANK),
    "attn_output.weight": (WIDTH, HEADS * PART),
}
LATENT_KEYS = {
    "attention.kv_lora_rank": RANK,
    "attention.key_length": 2 * PART,
    "attention.value_length": PART,
    "rope.dimension_count": PART,
}
QUERY_RANK = 16
LATENT_ROWS: dict[str, Shape] = {name: shape for name, shape in LATENT.items() if name != "attn_q.weight"} | {
    "attn_q_a.weight": (QUERY_RANK, WIDTH),
    "attn_q_a_norm.weight": (QUERY_RANK,),
    "attn_q_b.weight": (HEADS * 2 * PART, QUERY_RANK),
}
OLD = {
    "attention.q_lora_rank": QUERY_RANK,
    "leading_dense_block_count": 1,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 32,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}
COUNTS = {"expert_count": COUNT, "expert_used_count": 2}
OF_SHARED = COUNTS | {"expert_feed_forward_length": INNER, "expert_shared_count": 2, "expert_weights_scale": 1.0}
WHOLE = {"rope.dimension_count": HEAD}
PEER_MIXTURES = (
    Peer("deepseek", "deepseek", [LLAMA, EXPERTS | SHARED], OF_SHARED | WHOLE | {"leading_dense_block_count": 1}),
    Peer(
        "bailingmoe",
        "bailingmoe",
        [EXPERTS | SHARED] * LAYERS,
        OF_SHARED | WHOLE | {"expert_weights_norm": True},
    ),
    Peer(
        "arctic",
        "arctic",
        [NORMS | heads_of() | network(up=WIDTH, inner=WIDTH) | vectors("ffn_norm_exps.weight") | OF_ARCTIC] * LAYERS,
        COUNTS | WHOLE,
    ),
    Peer(
        "deepseek2-whole",
        "deepseek2",
        [NORMS | LATENT_ROWS | network(), NORMS | LATENT_ROWS | ROUTED | SHARED],
        LATENT_KEYS | OF_SHARED | OLD,
        kv_heads=HEADS,
    ),
    Peer("plm", "plm", [NORMS | LATENT | PLAIN] * LAYERS, LATENT_KEYS, kv_heads=HEADS, tied=True),
    Peer(
        "smallthinker",
        "smallthinker",
        [EXPERTS] * LAYERS,
        COUNTS | WHOLE | {"expert_feed_forward_length": INNER, "expert_gating_func": 2},
    ),
    Peer(
        "smallthinker-windows",
        "smallthinker",
        [EXPERTS] * 5,
        COUNTS
        | WHOLE
        | {"expert_feed_forward_length": INNER, "expert_gating_func": 1, "attention.sliding_window": 4096},
    ),
)
