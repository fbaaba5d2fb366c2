"""Tiny mixtures, and models with latent attention, of families or forms of files that transformers lacks.

In: nothing. Out: one `Peer` per file, as in `peer_cases`.
"""

from __future__ import annotations

from goldens.peer_cases import (
    FFN,
    HEAD,
    HEADS,
    KV_HEADS,
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
TAPS, STATES, STEPS, GROUPS = 4, 16, 2, 2
MIXED = WIDTH + 2 * GROUPS * STATES
MAMBA: dict[str, Shape] = vectors("attn_norm.weight") | {
    "ssm_in.weight": (WIDTH + MIXED + STEPS, WIDTH),
    "ssm_conv1d.weight": (MIXED, TAPS),
    "ssm_conv1d.bias": (MIXED,),
    "ssm_dt.bias": (STEPS,),
    "ssm_a": (STEPS, 1),
    "ssm_d": (STEPS, 1),
    "ssm_norm.weight": (GROUPS, WIDTH // GROUPS),
    "ssm_out.weight": (WIDTH, WIDTH),
}


def ungated(inner: int) -> dict[str, Shape]:
    """Nemotron-H's experts of a width, in rows of the latent width, and the shared one."""
    routed = {"ffn_up_exps.weight": (COUNT, inner, RANK), "ffn_down_exps.weight": (COUNT, RANK, inner)}
    shared = {"ffn_up_shexp.weight": (INNER, WIDTH), "ffn_down_shexp.weight": (WIDTH, INNER)}
    ends = {"ffn_latent_down.weight": (RANK, WIDTH), "ffn_latent_up.weight": (WIDTH, RANK)}
    router = {"ffn_gate_inp.weight": (COUNT, WIDTH), "exp_probs_b.bias": (COUNT,)}
    return vectors("attn_norm.weight") | routed | shared | ends | router


PUZZLE = {
    "expert_count": COUNT,
    "expert_used_count": [0, 3, 0, 1],
    "expert_feed_forward_length": [0, 16, 0, 24],
    "expert_shared_feed_forward_length": INNER,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "expert_group_count": 1,
    "moe_latent_size": RANK,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "ssm.conv_kernel": TAPS,
    "ssm.inner_size": WIDTH,
    "ssm.state_size": STATES,
    "ssm.time_step_rank": STEPS,
    "ssm.group_count": GROUPS,
}
GROK = {
    "attn_logit_softcapping": 3.0,
    "attention.output_scale": 0.5,
    "embedding_scale": 2.0,
    "logit_scale": 0.7,
    "router_logit_softcapping": 30.0,
}
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
    Peer(
        "grok",
        "grok",
        [EXPERTS | OF_ARCTIC | vectors("attn_output_norm.weight", "layer_output_norm.weight")] * LAYERS,
        COUNTS | WHOLE | GROK,
    ),
    Peer(
        "nemotron-puzzle",
        "nemotron_h_moe",
        [MAMBA, ungated(16), vectors("attn_norm.weight") | heads_of(), ungated(24)],
        PUZZLE,
        kv_heads=[0, 0, KV_HEADS, 0],
        ffn=[0, 16, 0, 24],
        epsilon="layer_norm_epsilon",
    ),
)
