"""Tiny models of families that transformers lacks: keys and tensors of their files, as llama.cpp reads them.

In: nothing. Out: one `Peer` per file. Every norm and bias has random numbers, so that none can be left out unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WIDTH, HEADS, KV_HEADS, HEAD, FFN, LAYERS = 32, 4, 2, 8, 48, 2
"""Unless a file says otherwise."""
Shape = tuple[int, ...]
Value = int | float | bool | str | Sequence[int] | Sequence[float] | Sequence[bool]


@dataclass(frozen=True, slots=True)
class Peer:
    """A file: `keys` beside the sizes, under the family's name; `layers` holds the tensors of each layer.

    `whole`: its file lies among those of `make_goldens.py`, with which most tests run: for what these lack. `embeds`:
    it has no logits; its norms are all in `beside`.
    """

    name: str
    architecture: str
    layers: Sequence[Mapping[str, Shape]]
    keys: Mapping[str, Value] = field(default_factory=dict)
    beside: Mapping[str, Shape] = field(default_factory=dict)
    width: int = WIDTH
    heads: int | Sequence[int] = HEADS
    kv_heads: int | Sequence[int] = KV_HEADS
    ffn: int | Sequence[int] = FFN
    epsilon: str = "layer_norm_rms_epsilon"
    tied: bool = False
    whole: bool = False
    embeds: bool = False


def vectors(*names: str, length: int = WIDTH) -> dict[str, Shape]:
    """Tensors of one dimension."""
    return dict.fromkeys(names, (length,))


def heads_of(*, width: int = WIDTH, heads: int = HEADS, kv_heads: int = KV_HEADS, head: int = HEAD) -> dict[str, Shape]:
    """Attention's matrices, one tensor each."""
    keys = kv_heads * head
    shapes = {"attn_q": (heads * head, width), "attn_k": (keys, width), "attn_v": (keys, width)}
    return {f"{name}.weight": shape for name, shape in (shapes | {"attn_output": (width, heads * head)}).items()}


def fused(heads: int = HEADS, kv_heads: int = KV_HEADS) -> dict[str, Shape]:
    """Attention's matrices, queries, keys and values in one."""
    rows = (heads + 2 * kv_heads) * HEAD
    return {"attn_qkv.weight": (rows, WIDTH), "attn_output.weight": (WIDTH, heads * HEAD)}


def network(*, gate: bool = True, up: int = FFN, inner: int = FFN, width: int = WIDTH) -> dict[str, Shape]:
    """The feed-forward network's matrices."""
    found = {"ffn_up.weight": (up, width), "ffn_down.weight": (width, inner)}
    return found | ({"ffn_gate.weight": (inner, width)} if gate else {})


def biases(*layers: Mapping[str, Shape]) -> dict[str, Shape]:
    """A bias for each matrix."""
    return {name.replace("weight", "bias"): shape[:1] for layer in layers for name, shape in layer.items()}


NORMS = vectors("attn_norm.weight", "ffn_norm.weight")
LAYER_NORMS = NORMS | vectors("attn_norm.bias", "ffn_norm.bias")
LAST_BIAS = vectors("output_norm.bias")
HEAD_NORMS = vectors("attn_q_norm.weight", "attn_k_norm.weight", length=HEAD)
NORM_PER_HEAD: Mapping[str, Shape] = {"attn_q_norm.weight": (HEADS, HEAD), "attn_k_norm.weight": (KV_HEADS, HEAD)}
LLAMA = NORMS | heads_of() | network()
QKV_BIASES = {"attn_q.bias": (HEADS * HEAD,), "attn_k.bias": (KV_HEADS * HEAD,), "attn_v.bias": (KV_HEADS * HEAD,)}
PLAIN = network(gate=False)
NARROW = 16
INNER, STATE, TAPS, RANK = 64, 16, 4, 64
"""Of PLaMo 2's state spaces: heads have as many columns as states have rows."""
BAICHUAN = (
    vectors("attn_norm.weight", "ffn_norm.weight", length=NARROW)
    | heads_of(width=NARROW, heads=2, kv_heads=2)
    | network(up=NARROW, inner=NARROW, width=NARROW)
)
BARE_POST_NORMS = vectors("post_attention_norm", "post_ffw_norm")
SUB_NORMS = vectors("attn_sub_norm.weight") | vectors("ffn_sub_norm.weight", length=FFN)
WINDOWS: Mapping[str, Value] = {
    "attention.sliding_window": 12,
    "attention.sliding_window_pattern": [True, False, True],
    "rope.freq_base": 50000.0,
    "rope.freq_base_swa": 20000.0,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
}
SCALES: Mapping[str, Value] = {"embedding_scale": 3.0, "residual_scale": 0.6, "logit_scale": 1.7}
XIELU: Mapping[str, Value] = {
    "xielu.alpha_p": [0.7, -0.4],
    "xielu.alpha_n": [-0.6, 0.9],
    "xielu.beta": [0.5, 0.4],
    "xielu.eps": [-0.001, -0.002],
}
GROWING: Mapping[str, Value] = {
    "attention.temperature_scale": 0.4,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 20,
    "rope.scaling.yarn_log_multiplier": 1.0,
}
THREE: Mapping[str, Value] = {"attention.key_length": HEAD, "attention.value_length": HEAD}
"""Keys of three heads, which is no power of two."""
DECI: Mapping[str, Value] = {"rope.dimension_count": HEAD, "attention.key_length": HEAD, "attention.value_length": HEAD}

PLAMO2_HALF = BARE_POST_NORMS | vectors("ffn_norm.weight") | network(gate=False, up=2 * FFN)
PLAMO2_STATES: Mapping[str, Shape] = {
    "ssm_in.weight": (2 * INNER, WIDTH),
    "ssm_conv1d.weight": (INNER, TAPS),
    "ssm_x.weight": (RANK + 2 * STATE, INNER),
    "ssm_dt.weight": (INNER // STATE, RANK),
    "ssm_out.weight": (WIDTH, INNER),
}
PLAMO2_VECTORS = {
    **vectors("ssm_dt.bias", "ssm_a", "ssm_d", length=INNER // STATE),
    **vectors("ssm_b_norm", "ssm_c_norm", length=STATE),
    **vectors("ssm_dt_norm", length=RANK),
}
PLAMO2_KEYS: Mapping[str, Value] = {
    **THREE,
    "ssm.conv_kernel": TAPS,
    "ssm.inner_size": INNER,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": INNER // STATE,
    "ssm.group_count": 0,
}
RECURRENT = (
    Peer(
        "plamo2",
        "plamo2",
        [
            vectors("attn_norm.weight") | PLAMO2_HALF | mixer
            for mixer in (fused() | NORM_PER_HEAD, *[PLAMO2_STATES | PLAMO2_VECTORS] * 2)
        ],
        PLAMO2_KEYS,
        heads=[HEADS, 0, 0],  # llama.cpp rotates nothing, and hangs, if the first layer has no heads
        kv_heads=[KV_HEADS, 0, 0],
    ),
)

PEERS = (
    Peer("internlm2", "internlm2", [LLAMA] * LAYERS),
    Peer("xverse", "xverse", [LLAMA] * LAYERS, {"rope.dimension_count": HEAD}),
    Peer("baichuan", "baichuan", [BAICHUAN] * 32, width=NARROW, heads=2, kv_heads=2, ffn=NARROW),
    Peer("qwen", "qwen", [NORMS | fused(4, 4) | {"attn_qkv.bias": (96,)} | network()] * 2, kv_heads=4, ffn=2 * FFN),
    Peer("orion", "orion", [LLAMA | LAYER_NORMS] * LAYERS, beside=LAST_BIAS, epsilon="layer_norm_epsilon"),
    Peer("exaone", "exaone", [LLAMA] * LAYERS, {"rope.dimension_count": HEAD}, {"rope_freqs.weight": (HEAD // 2,)}),
    Peer(
        "codeshell",
        "codeshell",
        [LAYER_NORMS | fused() | PLAIN | biases(fused(), PLAIN)] * LAYERS,
        beside=LAST_BIAS,
        epsilon="layer_norm_epsilon",
    ),
    Peer("plamo", "plamo", [vectors("attn_norm.weight") | heads_of() | network()] * LAYERS),
    Peer(
        "plamo3",
        "plamo3",
        [NORMS | fused() | HEAD_NORMS | BARE_POST_NORMS | network(gate=False, up=2 * FFN)] * 3,
        WINDOWS,
    ),
    Peer("nanbeige", "nanbeige", [LLAMA] * LAYERS, {"num_loops": 2, "skip_loop_final_norm": False}),
    Peer("nanbeige-bare", "nanbeige", [LLAMA] * LAYERS, {"num_loops": 3, "skip_loop_final_norm": True}),
    Peer("maincoder", "maincoder", [LLAMA | HEAD_NORMS] * LAYERS, {"rope.dimension_count": HEAD}),
    Peer(
        "pangu-embedded",
        "pangu-embedded",
        [LLAMA | QKV_BIASES | vectors("attn_output.bias")] * LAYERS,
        {"rope.dimension_count": HEAD, "attention.key_length": HEAD, "attention.value_length": HEAD},
    ),
    Peer(
        "deci",
        "deci",
        [
            LLAMA,
            NORMS | {"attn_output.weight": (WIDTH, WIDTH)} | network(up=32, inner=32),
            vectors("ffn_norm.weight") | network(),
            {},
            NORMS | heads_of(kv_heads=1) | network(),
        ],
        DECI,
        heads=[HEADS, HEADS, 0, 0, HEADS],
        kv_heads=[KV_HEADS, 0, 0, 0, 1],
        ffn=[FFN, 32, FFN, 0, FFN],
    ),
    Peer(
        "stablelm-heads",
        "stablelm",
        [vectors("attn_norm.weight", "attn_norm.bias") | heads_of() | network() | NORM_PER_HEAD] * LAYERS,
        {"rope.dimension_count": HEAD // 2, "use_parallel_residual": True},
        LAST_BIAS,
        epsilon="layer_norm_epsilon",
        whole=True,
    ),
    Peer("baichuan-13b", "baichuan", [BAICHUAN] * 40, width=NARROW, heads=2, kv_heads=2, ffn=NARROW),
    Peer(
        "refact",
        "refact",
        [NORMS | heads_of(heads=3, kv_heads=1) | network()] * LAYERS,
        THREE,
        heads=3,
        kv_heads=1,
        whole=True,
    ),
    Peer("apertus", "apertus", [NORMS | heads_of() | HEAD_NORMS | PLAIN] * LAYERS, XIELU, whole=True),
    Peer("mistral3", "mistral3", [LLAMA] * LAYERS, GROWING, whole=True),
    Peer(
        "jais",
        "jais",
        [LAYER_NORMS | fused(4, 4) | network() | biases(fused(4, 4), network())] * LAYERS,
        {"attention.max_alibi_bias": 8.0},
        LAST_BIAS,
        kv_heads=4,
        epsilon="layer_norm_epsilon",
    ),
    Peer("bitnet", "bitnet", [LLAMA | SUB_NORMS] * LAYERS, tied=True),
    Peer("minicpm", "minicpm", [LLAMA] * LAYERS, SCALES),
    *RECURRENT,
)
