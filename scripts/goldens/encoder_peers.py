"""Tiny embedding models of families that transformers lacks: keys and tensors of their files, as llama.cpp reads them.

In: nothing. Out: one `Peer` per file, with random norms and biases.
"""

from __future__ import annotations

from goldens.peer_cases import (
    FFN,
    HEAD,
    HEADS,
    LAYERS,
    LLAMA,
    NORMS,
    WIDTH,
    Peer,
    Shape,
    biases,
    fused,
    heads_of,
    network,
    vectors,
)

EPSILON = "layer_norm_epsilon"
WHOLE = {"attention.causal": False, "pooling_type": 1}
FIRST = vectors("token_embd_norm.weight", "token_embd_norm.bias") | {"token_types.weight": (2, WIDTH)}
AFTER = vectors(
    *(f"{name}.{part}" for name in ("attn_output_norm", "layer_output_norm") for part in ("weight", "bias"))
)
SQUARE = heads_of(kv_heads=HEADS)
DOWN_BIAS = vectors("ffn_down.bias")
JINA = AFTER | SQUARE | biases(SQUARE) | DOWN_BIAS
PARTS = [f"{name}.{part}" for name in ("attn_q_norm", "attn_k_norm", "attn_norm_2") for part in ("weight", "bias")]
CODE = JINA | vectors(*PARTS) | network(gate=False, up=2 * FFN) | {"ffn_up.bias": (2 * FFN,)}
EXPERTS, CHOSEN = 4, 2
ROUTED: dict[str, Shape] = {
    "ffn_gate_inp.weight": (EXPERTS, WIDTH),
    "ffn_up_exps.weight": (EXPERTS, FFN, WIDTH),
    "ffn_down_exps.weight": (EXPERTS, WIDTH, FFN),
}
NOMIC = AFTER | fused(kv_heads=HEADS) | biases(fused(kv_heads=HEADS))
DENSE = NOMIC | network(gate=False) | DOWN_BIAS | {"ffn_up.bias": (FFN,)}
MIXED = {"expert_count": EXPERTS, "expert_used_count": CHOSEN, "moe_every_n_layers": 2, "rope.freq_base": 10000.0}

RANKING: dict[str, Shape] = {
    "cls.weight": (WIDTH, WIDTH),
    "cls.bias": (WIDTH,),
    "cls.output.weight": (1, WIDTH),
    "cls.output.bias": (1,),
}
"""The head of a reranker, beside which a converter's file says that the first row is an embedding."""

ENCODERS = (
    Peer(
        "jina-bert-v2",
        "jina-bert-v2",
        [JINA | network()] * LAYERS,
        WHOLE,
        FIRST,
        kv_heads=HEADS,
        epsilon=EPSILON,
        embeds=True,
    ),
    Peer(
        "jina-bert-v2-code", "jina-bert-v2", [CODE] * LAYERS, WHOLE, FIRST, kv_heads=HEADS, epsilon=EPSILON, embeds=True
    ),
    Peer(
        "neo-bert",
        "neo-bert",
        [NORMS | fused(kv_heads=HEADS) | network(gate=False, up=2 * FFN)] * LAYERS,
        WHOLE | {"rope.freq_base": 10000.0},
        vectors("enc.output_norm.weight"),
        kv_heads=HEADS,
        embeds=True,
    ),
    Peer(
        "nomic-bert-moe",
        "nomic-bert-moe",
        [DENSE, NOMIC | ROUTED, DENSE],
        WHOLE | MIXED,
        FIRST,
        kv_heads=HEADS,
        epsilon=EPSILON,
        embeds=True,
    ),
    Peer(
        "neo-bert-reranker",
        "neo-bert",
        [NORMS | fused(kv_heads=HEADS) | network(gate=False, up=2 * FFN)] * LAYERS,
        WHOLE | {"rope.freq_base": 10000.0, "pooling_type": 2},
        vectors("enc.output_norm.weight") | RANKING,
        kv_heads=HEADS,
        embeds=True,
    ),
    Peer(
        "llama-embed",
        "llama-embed",
        [LLAMA] * LAYERS,
        WHOLE | {"rope.dimension_count": HEAD},
        vectors("output_norm.weight"),
        embeds=True,
    ),
)
