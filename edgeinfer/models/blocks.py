"""Building blocks shared by many model families, each a function that adds ops to a `ModelGraph`.

The residual stream is the buffer `x`. A branch reads `normed`; its result is added to `x` directly or, if it is normed
itself, left in `branch`. Biases, sinks, norms before the last product of a branch, fused query-key-value projections,
tied heads and the file's own activation (`feed_forward_activation`) are used if the file has them. Uses GGUF's tensor
names; independent of the families. Raises BadGGUF for missing tensors or wrong shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.graph.activations import Activation
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Every, PagedKV, RopePermutation, Rows, Weight
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.clip import Clip
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.keep_highest import KeepHighest
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.position_embed import PositionEmbed
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.graph.ops.soft_cap import SoftCap
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.graph.rotary import RopeTable
from edgeinfer.models.head_gates import Gate, gate_heads
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import Sizes

HeadNorms: TypeAlias = bool | Literal["rotated", "bare"]
"""Whether queries and keys are normed per head: before the rotation, or after it with or without weights."""
FeedForwardGate: TypeAlias = Literal["own", "in ffn_up", "none"]
"""Where the gate of a feed-forward block is: in a tensor of its own, or in the first half of the rows of ffn_up."""


def embed(g: ModelGraph, scale: float = 1.0, positions: Weight | None = None) -> None:
    """Write the embedding rows times `scale` to `x`; `positions`: learned positions to add."""
    g.stage("embed")
    sizes = g.sizes
    x = g.buffer("x", sizes.width)
    g.add(Embed(g.hp.matrix("token_embd.weight", (sizes.n_vocab, sizes.width)), x, scale))
    if positions is not None:
        g.add(PositionEmbed(positions, x))


def learned_positions(hp: Hyperparameters, sizes: Sizes, first: int = 0) -> Weight:
    """The rows of `position_embd`, from `first` on. Raises BadSetting for a context of more positions."""
    if hp.n_context > sizes.n_context_trained:
        raise BadSetting(
            f"this model knows positions up to {sizes.n_context_trained}, so a context of {hp.n_context} tokens is "
            f"impossible; choose {sizes.n_context_trained} or less"
        )
    n_rows = sizes.n_context_trained + first
    return hp.matrix("position_embd.weight", (n_rows, sizes.width), (first, n_rows))


def head(g: ModelGraph, cap: float | None = None, norm: str = "output_norm", scale: float = 1.0) -> ModelSpec:
    """Final norm and output projection of the requested rows; returns the model. `scale` and `cap` apply to logits.

    Without output.weight the embedding is used (tied).
    """
    hp, sizes = g.hp, g.sizes
    g.stage("head")
    tensor = "output.weight" if "output.weight" in hp.tensors else "token_embd.weight"
    weight = hp.matrix(tensor, (sizes.n_vocab, sizes.width))
    taken = g.buffer("x_out", sizes.width, Rows.OUTPUTS)
    normed = g.buffer("normed_out", sizes.width, Rows.OUTPUTS)
    logits = g.buffer("logits", sizes.n_vocab, Rows.OUTPUTS)
    g.add(TakeOutputs("x", taken, sizes.width), _norm(g, taken, normed, f"{norm}.weight"))
    g.add(MatMul(normed, logits, weight, hp.bias("output.bias", sizes.n_vocab)))
    if scale != 1.0:
        g.add(Scale(logits, sizes.n_vocab, scale))
    if cap is not None:
        g.add(SoftCap(logits, sizes.n_vocab, cap))
    return g.spec()


def hidden_head(g: ModelGraph) -> ModelSpec:
    """A model whose output is its last hidden rows, already normed.

    Raises UnsupportedModel if the file says that the model is causal: it has no logits to generate with.
    """
    if g.hp.flag("attention.causal", default=False):
        raise UnsupportedModel(
            f"{g.hp.architecture}.attention.causal is true; edgeinfer has such models where they read texts as a whole"
        )
    g.stage("head")
    taken = g.buffer("x_out", g.sizes.width, Rows.OUTPUTS)
    g.add(TakeOutputs("x", taken, g.sizes.width))
    return g.spec(taken)


def norm_in_place(g: ModelGraph, tensor: str) -> None:
    """The family's norm of `x`, in place: for families that norm after adding a branch."""
    g.add(_norm(g, "x", "x", f"{g.prefix}{tensor}.weight"))


def norm(g: ModelGraph, tensor: str, out: str = "normed", source: str = "x") -> None:
    """The family's norm of `source`, written to `normed` or another buffer: the start of a branch."""
    g.add(_norm(g, source, g.buffer(out, g.sizes.width), f"{g.prefix}{tensor}.weight"))


def rejoin(g: ModelGraph, tensor: str) -> None:
    """Norm a finished `branch` and add it to `x`."""
    name = f"{g.prefix}{tensor}"
    name = name if name in g.hp.tensors else f"{name}.weight"  # PLaMo's files leave out the ending
    g.add(_norm(g, "branch", "branch", name), Add("branch", "x", g.sizes.width))


def join(g: ModelGraph, scale: float) -> None:
    """Add a finished `branch` times `scale` to `x`."""
    g.add(Scale("branch", g.sizes.width, scale), Add("branch", "x", g.sizes.width))


def attention(
    g: ModelGraph,
    rope: RopeTable | None,
    *,
    query_rope: RopeTable | None = None,
    paired: bool = False,
    window: int | None = None,
    soft_cap: float | None = None,
    scale: float | None = None,
    head_norms: HeadNorms = False,
    whole_norms: bool = False,
    gate: Gate | None = None,
    causal: bool = True,
    alibi: float | None = None,
    relative: Weight | None = None,
    chunked: bool = False,
    clip: float | None = None,
    shared: int | None = None,
    bare_values: bool = False,
    source: str = "normed",
    out: str = "x",
) -> int:
    """Projections of `source`, rotary embedding, KV cache, attention and output projection. Returns the cache's number.

    `rope`: None if positions are learned, or in layers without them; `query_rope`: that of queries, if not the same.
    `paired`: rotary pairs are adjacent in the file, not half-split. `window`, `soft_cap`, `scale`, `alibi`,
    `relative`, `chunked`: as in `ops.Attention`; a scale of None means 1 / sqrt(head width). `head_norms`: queries and
    keys are normed per head; `whole_norms`: over all heads at once. `clip`: what queries, keys and values are limited
    to, after norms and before the rotation. `gate`: the tensor of a gate that multiplies the head outputs. Without
    `causal`, or if the file says so (`attention.causal`), tokens also attend to later ones. `shared`: an earlier
    layer's cache, which this layer's queries attend to.
    `bare_values`: values are normed per head, without a weight; they are the keys' product if the file has no other.
    """
    hp, sizes = g.hp, g.sizes
    heads, width = sizes.heads, sizes.head_width
    kept = PagedKV(sizes.kv_heads, width, sizes.value_width, window)
    parts = _parts(g, bare_values) if shared is None else ("query",)
    scale = hp.number("attention.scale", 0.0) or (width**-0.5 if scale is None else scale)
    causal = hp.flag("attention.causal", default=causal)
    heads_in = _project_heads(g, source, parts, paired=paired, gated=gate == "attn_q")
    if bare_values and shared is None:
        heads_in["value"] = _bare_values(g, heads_in.get("value", heads_in["key"]))
    rotated = {heads_in[part]: heads if part == "query" else sizes.kv_heads for part in parts if part != "value"}
    if head_norms is True:
        _head_norms(g, rotated, paired=paired)
    if whole_norms:
        _whole_norms(g, rotated)
    if clip is not None:
        of_parts = {"query": sizes.query_width, "key": sizes.key_width, "value": sizes.values_width}
        g.add(*(Clip(name, of_parts[part], clip) for part, name in heads_in.items()))
    tables = dict.fromkeys(rotated, rope) | {heads_in["query"]: query_rope or rope}
    g.add(*(Rope(name, rotated[name], width, table) for name, table in tables.items() if table is not None))
    if head_norms == "rotated":
        _head_norms(g, rotated, paired=paired)
    elif head_norms == "bare":
        g.add(*(RMSNorm(name, name, None, width, sizes.epsilon, count) for name, count in rotated.items()))
    layer = g.cache(kept) if shared is None else _shared_cache(g, shared, kept)
    widths = width, kept.value_width
    if shared is None:
        g.add(StoreKV(heads_in["key"], heads_in["value"], layer, kept.kv_heads, *widths))
    attended = g.buffer("attended", sizes.attended_width, heads=heads)
    sinks = hp.bias(f"{g.prefix}attn_sinks.weight", heads)
    query = heads_in["query"]
    op = Attention(query, attended, layer, heads, kept.kv_heads, *widths, scale, window, soft_cap, sinks, causal)
    g.add(replace(op, alibi=alibi, relative=relative, chunked=chunked))
    if gate is not None:
        gate_heads(g, gate, source, attended)
    _last_norm(g, attended, "attn_sub_norm", sizes.attended_width)
    last = "attn_o" if f"{g.prefix}attn_o.weight" in hp.tensors else "attn_output"  # T5 has a name of its own
    project(g, attended, last, sizes.attended_width, out)
    return layer


def feed_forward(
    g: ModelGraph,
    activation: Activation = "silu",
    *,
    gate: FeedForwardGate = "own",
    width: int = 0,
    suffix: str = "",
    source: str = "normed",
    out: str = "x",
    adds: bool = False,
    deviations: float | None = None,
) -> None:
    """down(activation(gate(source)) * up(source)), or without a gate down(activation(up(source))).

    `width` (hidden width, if not the layer's) and `suffix` (of tensor names) are for a shared expert. `adds`: add to
    `out`, as is always done for `x`. `deviations`: how far above their mean gates must be to be kept (`KeepHighest`).
    """
    hp, ffn = g.hp, width or g.sizes.ffn_width
    activation = _activation(hp, activation)
    if gate != "none":
        gates, up = g.buffer("gate", ffn), g.buffer("up", ffn)
        _gate_and_up(g, source, (gates, up), ffn, suffix, fused=gate == "in ffn_up")
        if deviations is not None:
            g.add(KeepHighest(gates, ffn, deviations))
        hidden = g.buffer("hidden", ffn)
        g.add(GatedAct(gates, up, hidden, ffn, activation))
    else:
        up, hidden, tensor = g.buffer("up", ffn), g.buffer("hidden", ffn), f"{g.prefix}ffn_up{suffix}"
        weight = hp.matrix(f"{tensor}.weight", (ffn, g.sizes.width))
        g.add(MatMul(source, up, weight, hp.bias(f"{tensor}.bias", ffn)), Act(up, hidden, ffn, activation))
    _last_norm(g, hidden, f"ffn_sub_norm{suffix}", ffn)
    project(g, hidden, f"ffn_down{suffix}", ffn, out, adds=adds)


def project(g: ModelGraph, source: str, tensor: str, columns: int, out: str, *, adds: bool = False) -> None:
    """The product that ends a branch: added to `x`; written to another buffer, or added there with `adds`."""
    hp, width = g.hp, g.sizes.width
    weight = hp.matrix(f"{g.prefix}{tensor}.weight", (width, columns))
    bias = hp.bias(f"{g.prefix}{tensor}.bias", width)
    g.add(MatMul(source, g.buffer(out, width), weight, bias, accumulate=adds or out == "x"))


def _norm(g: ModelGraph, source: str, out: str, tensor: str, width: int = 0) -> LayerNorm | RMSNorm:
    """The family's norm over the given width, or the model's."""
    hp, sizes, width = g.hp, g.sizes, width or g.sizes.width
    if sizes.norms == "rms":
        return RMSNorm(source, out, hp.vector(tensor, width), width, sizes.epsilon)
    weight = None if sizes.norms == "bare layer" else hp.vector(tensor, width)
    bias = hp.vector(tensor.removesuffix("weight") + "bias", width) if sizes.norms == "layer" else None
    return LayerNorm(source, out, weight, bias, width, sizes.epsilon)


def _last_norm(g: ModelGraph, buffer: str, tensor: str, width: int) -> None:
    """RMSNorm of what the last product of a branch reads, if the file has one (BitNet)."""
    weight = g.hp.bias(f"{g.prefix}{tensor}.weight", width)
    if weight is not None:
        g.add(RMSNorm(buffer, buffer, weight, width, g.sizes.epsilon))


def _shared_cache(g: ModelGraph, layer: int, wanted: PagedKV) -> int:
    """The number of the earlier layer's cache that a layer attends to. Raises BadGGUF if the cache does not fit."""
    kept = g.kept(layer)
    if replace(kept, window=None) != replace(wanted, window=None):
        raise BadGGUF(f"{g.prefix}attn attends to keys and values of another layer, which are of other sizes")
    if kept.window is not None and (wanted.window is None or wanted.window > kept.window):
        reach = "all positions" if wanted.window is None else f"{wanted.window} positions"
        raise BadGGUF(f"{g.prefix}attn reaches {reach} in keys and values of a layer that keeps {kept.window}")
    return layer


def _parts(g: ModelGraph, bare_values: bool) -> tuple[str, ...]:
    """The products of a layer with keys of its own; values have none if the file lacks it and they may be keys."""
    has_values = any(f"{g.prefix}{tensor}.weight" in g.hp.tensors for tensor in ("attn_v", "attn_qkv"))
    return ("query", "key") if bare_values and not has_values else ("query", "key", "value")


def _bare_values(g: ModelGraph, source: str) -> str:
    """RMSNorm without a weight of each value head; returns their buffer."""
    sizes = g.sizes
    out = g.buffer("value", sizes.values_width, heads=sizes.kv_heads)
    g.add(RMSNorm(source, out, None, sizes.value_width, sizes.epsilon, sizes.kv_heads))
    return out


def _project_heads(
    g: ModelGraph, source: str, parts: Sequence[str], *, paired: bool, gated: bool = False
) -> dict[str, str]:
    """Query, key and value projections, from separate tensors or row ranges of one; returns their buffers."""
    hp, sizes, prefix = g.hp, g.sizes, g.prefix
    unpair = RopePermutation(sizes.head_width, sizes.rotary_width) if paired else None
    heights = {"query": sizes.query_width, "key": sizes.key_width, "value": sizes.values_width}
    taken = {**heights, "query": sizes.query_width + (sizes.attended_width if gated else 0)}
    fused = f"{prefix}attn_qkv.weight" in hp.tensors
    start, buffers = 0, {}
    counts = {"query": sizes.heads, "key": sizes.kv_heads, "value": sizes.kv_heads}
    for out in parts:
        height, own = heights[out], f"{prefix}attn_{out[0]}"
        tensor = f"{prefix}attn_qkv" if fused else own
        total = sum(taken.values()) if fused else taken[out]
        rows = (start, start + height)
        order: RopePermutation | Every | None = None if out == "value" else unpair
        if gated and out == "query":
            rows = (0, taken[out] - sizes.value_width)
            order = Every(sizes.head_width, sizes.head_width + sizes.value_width)
        weight = hp.matrix(f"{tensor}.weight", (total, g.width_of(source)), rows, order)
        bias = hp.bias(f"{tensor}.bias", total, rows, order)
        if fused and bias is None:
            bias = hp.bias(f"{own}.bias", height, order=order)
        buffers[out] = g.buffer(out, height, heads=counts[out])
        g.add(MatMul(source, buffers[out], weight, bias))
        start += taken[out] if fused else 0
    return buffers


def _head_norms(g: ModelGraph, counts: Mapping[str, int], *, paired: bool) -> None:
    """The family's norm of each head of these buffers; LayerNorms, and some RMSNorms, have a weight for each head."""
    hp, width, epsilon = g.hp, g.sizes.head_width, g.sizes.epsilon
    order = RopePermutation(width, g.sizes.rotary_width) if paired else None
    for name, heads in counts.items():
        tensor = f"{g.prefix}attn_{name[0]}_norm.weight"
        info = hp.tensors.get(tensor)
        if g.sizes.norms == "rms" and info is not None and len(info.shape) == 2:
            g.add(RMSNorm(name, name, hp.table(tensor, (heads, width), order), width, epsilon, heads, own=True))
        elif g.sizes.norms == "rms":
            g.add(RMSNorm(name, name, hp.vector(tensor, width, order=order), width, epsilon, heads))
        else:
            g.add(LayerNorm(name, name, hp.table(tensor, (heads, width), order), None, width, epsilon, heads))


def _whole_norms(g: ModelGraph, counts: Mapping[str, int]) -> None:
    """The family's norm over all heads of each of these buffers."""
    for name, heads in counts.items():
        g.add(_norm(g, name, name, f"{g.prefix}attn_{name[0]}_norm.weight", heads * g.sizes.head_width))


def _activation(hp: Hyperparameters, usual: Activation) -> Activation:
    """The file's own activation, else the family's default. Raises UnsupportedModel."""
    key = "feed_forward_activation"
    found, known = hp.text(key, usual), get_args(Activation)
    if usual not in known:
        raise ValueError(f"activation={usual!r}: there are {', '.join(known)}")
    for activation in known:
        if activation == found:
            return activation  # type: ignore[no-any-return]
    raise UnsupportedModel(f"{hp.architecture}.{key} is {found[:80]!r}; edgeinfer has {', '.join(known)}")


def _gate_and_up(g: ModelGraph, source: str, outs: tuple[str, str], ffn: int, suffix: str = "", *, fused: bool) -> None:
    """Both products of `source`, from two tensors or from the halves of one."""
    hp, prefix = g.hp, g.prefix
    total = 2 * ffn if fused else ffn
    up = f"{prefix}ffn_up{suffix}"
    tensors = (up if fused else f"{prefix}ffn_gate{suffix}", up)
    for out, tensor, rows in zip(outs, tensors, ((0, ffn), (total - ffn, total)), strict=True):
        weight = hp.matrix(f"{tensor}.weight", (total, g.sizes.width), rows)
        g.add(MatMul(source, out, weight, hp.bias(f"{tensor}.bias", total, rows)))
