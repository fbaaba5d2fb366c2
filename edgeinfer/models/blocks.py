"""The decoder-only transformer that all families share, as ops; a `LayerStyle` says what differs.

In: Hyperparameters, sizes and a style for each layer. Out: a ModelSpec. Knows GGUF's tensor names, not the families.
Biases, sinks, fused query-key-value projections, tied heads and an activation of the file's own
(`feed_forward_activation`) are used wherever the file has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.activations import Activation
from edgeinfer.graph.buffers import Buffer, Rows
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope, RopeTable
from edgeinfer.graph.ops.soft_cap import SoftCap
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.weights import Unpair, Weight
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.mixture import Mixture
from edgeinfer.models.sizes import Sizes
from edgeinfer.models.spec import KVLayer, ModelSpec, Stage


@dataclass(frozen=True, slots=True)
class LayerStyle:
    """What differs between families, or between the layers of one.

    `rope`: None where positions are learned. `gated`: whether the feed-forward network has a gate.
    `paired`: rotary pairs are neighbours in the file, not halves of a head. `window` and `soft_cap`, `scale`: as in
    `ops.Attention`, a scale of None being 1 / sqrt(head width). `head_norms`: queries and keys are normed per head.
    `whole_norms`: they are normed over all heads at once. `mixture`: experts are in place of gate, up and down.
    `fused_ffn`: gate and up are the row halves of ffn_up. `post_norms`: a branch is normed before it is added.
    `ffn_norm`: what the norm before the feed-forward network is called.
    """

    rope: RopeTable | None
    paired: bool = False
    window: int | None = None
    soft_cap: float | None = None
    scale: float | None = None
    head_norms: bool = False
    whole_norms: bool = False
    activation: Activation = "silu"
    gated: bool = True
    fused_ffn: bool = False
    post_norms: bool = False
    mixture: Mixture | None = None
    ffn_norm: str = "ffn_norm"


def decoder(
    hp: Hyperparameters,
    sizes: Sizes,
    styles: Sequence[LayerStyle],
    *,
    embedding_scale: float = 1.0,
    positions: Weight | None = None,
    logits_cap: float | None = None,
) -> ModelSpec:
    """The whole model: embedding, one layer for each style, and the head. Raises BadGGUF where the tensors differ."""
    table = hp.matrix("token_embd.weight", (sizes.n_vocab, sizes.width))
    learned = () if positions is None else (PositionEmbed(positions, "x"),)
    stages = [Stage("embed", (Embed(table, "x", embedding_scale), *learned))]
    for number, style in enumerate(styles):
        stages.append(Stage(f"blk.{number}", tuple(_layer(hp, sizes, number, style))))
    stages.append(Stage("head", tuple(_head(hp, sizes, logits_cap))))
    return ModelSpec(
        architecture=hp.architecture,
        name=hp.name,
        n_layers=sizes.n_layers,
        width=sizes.width,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_width=sizes.head_width,
        ffn_width=sizes.ffn_width,
        n_vocab=sizes.n_vocab,
        n_context_trained=sizes.n_context_trained,
        buffers=_buffers(sizes, styles),
        stages=tuple(stages),
        kv=tuple(KVLayer(sizes.kv_heads, sizes.head_width, style.window) for style in styles),
    )


def _buffers(sizes: Sizes, styles: Sequence[LayerStyle]) -> tuple[Buffer, ...]:
    """The buffers that the ops below read and write."""
    branch = (Buffer("branch", sizes.width),) if any(style.post_norms for style in styles) else ()
    mixture = next((style.mixture for style in styles if style.mixture is not None), None)
    gate = (Buffer("gate", sizes.ffn_width),) if any(style.gated for style in styles) else ()
    dense = (*gate, Buffer("up", sizes.ffn_width), Buffer("hidden", sizes.ffn_width))
    return (
        Buffer("x", sizes.width),
        Buffer("normed", sizes.width),
        Buffer("query", sizes.query_width),
        Buffer("key", sizes.kv_width),
        Buffer("value", sizes.kv_width),
        Buffer("attended", sizes.query_width),
        *(dense if mixture is None else mixture.buffers()),
        *branch,
        Buffer("x_out", sizes.width, Rows.OUTPUTS),
        Buffer("normed_out", sizes.width, Rows.OUTPUTS),
        Buffer("logits", sizes.n_vocab, Rows.OUTPUTS),
    )


def _layer(hp: Hyperparameters, sizes: Sizes, number: int, style: LayerStyle) -> list[Op]:
    """Attention and feed-forward branches around the residual stream `x`."""
    prefix = f"blk.{number}."
    return [
        _norm(hp, sizes, "x", "normed", f"{prefix}attn_norm.weight"),
        *_attention(hp, sizes, number, style),
        *_rejoin(hp, sizes, f"{prefix}post_attention_norm.weight", style),
        _norm(hp, sizes, "x", "normed", f"{prefix}{style.ffn_norm}.weight"),
        *_feed_forward(hp, sizes, prefix, style),
        *_rejoin(hp, sizes, f"{prefix}post_ffw_norm.weight", style),
    ]


def _norm(hp: Hyperparameters, sizes: Sizes, source: str, out: str, tensor: str) -> LayerNorm | RMSNorm:
    """The family's norm over the model width."""
    weight = hp.vector(tensor, sizes.width)
    if sizes.layer_norms:
        bias = hp.vector(tensor.removesuffix("weight") + "bias", sizes.width)
        return LayerNorm(source, out, weight, bias, sizes.width, sizes.epsilon)
    return RMSNorm(source, out, weight, sizes.width, sizes.epsilon)


def _rejoin(hp: Hyperparameters, sizes: Sizes, tensor: str, style: LayerStyle) -> list[Op]:
    """Norm of a finished branch and its addition to `x`; nothing where the branch was added as it was computed."""
    if not style.post_norms:
        return []
    return [_norm(hp, sizes, "branch", "branch", tensor), Add("branch", "x", sizes.width)]


def _project_back(hp: Hyperparameters, sizes: Sizes, source: str, tensor: str, columns: int, style: LayerStyle) -> Op:
    """Product that ends a branch: into `branch` where a post norm follows, else added to `x`."""
    weight = hp.matrix(f"{tensor}.weight", (sizes.width, columns))
    bias = hp.bias(f"{tensor}.bias", sizes.width)
    return MatMul(source, "branch" if style.post_norms else "x", weight, bias, accumulate=not style.post_norms)


def _attention(hp: Hyperparameters, sizes: Sizes, number: int, style: LayerStyle) -> list[Op]:
    """Projections of `normed`, rotary embedding, cache write, attention and output projection."""
    prefix, heads, kv_heads, width = f"blk.{number}.", sizes.heads, sizes.kv_heads, sizes.head_width
    scale = hp.number("attention.scale", 0.0) or (width**-0.5 if style.scale is None else style.scale)
    rope, sinks = style.rope, hp.bias(f"{prefix}attn_sinks.weight", heads)
    return [
        *_qkv(hp, sizes, prefix, style),
        *(_head_norms(hp, sizes, prefix) if style.head_norms else []),
        *(_whole_norms(hp, sizes, prefix) if style.whole_norms else []),
        *([] if rope is None else [Rope("query", heads, width, rope), Rope("key", kv_heads, width, rope)]),
        StoreKV("key", "value", number, kv_heads, width),
        Attention("query", "attended", number, heads, kv_heads, width, scale, style.window, style.soft_cap, sinks),
        _project_back(hp, sizes, "attended", f"{prefix}attn_output", sizes.query_width, style),
    ]


def _qkv(hp: Hyperparameters, sizes: Sizes, prefix: str, style: LayerStyle) -> list[Op]:
    """Query, key and value projections, from three tensors or from the row ranges of one."""
    unpair = Unpair(sizes.head_width, sizes.rotary_width) if style.paired else None
    heights = {"query": sizes.query_width, "key": sizes.kv_width, "value": sizes.kv_width}
    fused = f"{prefix}attn_qkv.weight" in hp.tensors
    ops: list[Op] = []
    start = 0
    for out, height in heights.items():
        tensor = f"{prefix}attn_qkv" if fused else f"{prefix}attn_{out[0]}"
        total = sum(heights.values()) if fused else height
        rows = (start, start + height)
        order = None if out == "value" else unpair
        weight = hp.matrix(f"{tensor}.weight", (total, sizes.width), rows, order)
        ops.append(MatMul("normed", out, weight, hp.bias(f"{tensor}.bias", total, rows, order)))
        start += height if fused else 0
    return ops


def _head_norms(hp: Hyperparameters, sizes: Sizes, prefix: str) -> list[Op]:
    """RMSNorm of each query and key head."""
    width, epsilon = sizes.head_width, sizes.epsilon
    query, key = (hp.vector(f"{prefix}attn_{letter}_norm.weight", width) for letter in "qk")
    return [
        RMSNorm("query", "query", query, width, epsilon, sizes.heads),
        RMSNorm("key", "key", key, width, epsilon, sizes.kv_heads),
    ]


def _whole_norms(hp: Hyperparameters, sizes: Sizes, prefix: str) -> list[Op]:
    """RMSNorm of all query and of all key heads."""
    widths = {"query": sizes.query_width, "key": sizes.kv_width}
    return [
        RMSNorm(name, name, hp.vector(f"{prefix}attn_{name[0]}_norm.weight", width), width, sizes.epsilon)
        for name, width in widths.items()
    ]


def _feed_forward(hp: Hyperparameters, sizes: Sizes, prefix: str, style: LayerStyle) -> list[Op]:
    """The second branch of a layer."""
    if style.mixture is None:
        return _ffn(hp, sizes, prefix, style)
    return style.mixture.ops(hp, prefix, sizes.width, "x")


def _activation(hp: Hyperparameters, usual: Activation) -> Activation:
    """What the file's own key says, else what is usual in the family. Raises UnsupportedModel."""
    key = "feed_forward_activation"
    found, known = hp.text(key, usual), get_args(Activation)
    for activation in known:
        if activation == found:
            return activation  # type: ignore[no-any-return]
    raise UnsupportedModel(f"{hp.architecture}.{key} is {found[:80]!r}; edgeinfer has {', '.join(known)}")


def _ffn(hp: Hyperparameters, sizes: Sizes, prefix: str, style: LayerStyle) -> list[Op]:
    """down(activation(gate(normed)) * up(normed)), or without a gate down(activation(up(normed)))."""
    ffn, activation = sizes.ffn_width, _activation(hp, style.activation)
    if style.gated:
        ops = _gate_and_up(hp, sizes, prefix, style)
        ops.append(GatedAct("gate", "up", "hidden", ffn, activation))
    else:
        weight = hp.matrix(f"{prefix}ffn_up.weight", (ffn, sizes.width))
        ops = [MatMul("normed", "up", weight, hp.bias(f"{prefix}ffn_up.bias", ffn))]
        ops.append(Act("up", "hidden", ffn, activation))
    ops.append(_project_back(hp, sizes, "hidden", f"{prefix}ffn_down", ffn, style))
    return ops


def _gate_and_up(hp: Hyperparameters, sizes: Sizes, prefix: str, style: LayerStyle) -> list[Op]:
    """Both products of `normed`, from two tensors or from the halves of one."""
    ffn = sizes.ffn_width
    total = 2 * ffn if style.fused_ffn else ffn
    gate_tensor = f"{prefix}ffn_up" if style.fused_ffn else f"{prefix}ffn_gate"
    ops: list[Op] = []
    for out, tensor, rows in (("gate", gate_tensor, (0, ffn)), ("up", f"{prefix}ffn_up", (total - ffn, total))):
        weight = hp.matrix(f"{tensor}.weight", (total, sizes.width), rows)
        ops.append(MatMul("normed", out, weight, hp.bias(f"{tensor}.bias", total, rows)))
    return ops


def _head(hp: Hyperparameters, sizes: Sizes, cap: float | None) -> list[Op]:
    """Final norm and output projection of the wanted rows; without output.weight the embedding is used (tied)."""
    tensor = "output.weight" if "output.weight" in hp.tensors else "token_embd.weight"
    weight = hp.matrix(tensor, (sizes.n_vocab, sizes.width))
    return [
        TakeOutputs("x", "x_out", sizes.width),
        _norm(hp, sizes, "x_out", "normed_out", "output_norm.weight"),
        MatMul("normed_out", "logits", weight, hp.bias("output.bias", sizes.n_vocab)),
        *([] if cap is None else [SoftCap("logits", sizes.n_vocab, cap)]),
    ]
