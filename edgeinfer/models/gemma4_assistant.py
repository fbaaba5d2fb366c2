"""Gemma 4's assistants: trained heads in files of their own, which attend to the keys and values of their model.

In: Hyperparameters of the file, with the model's embedding, and the model's spec. Out: a `TrainedHead`: a product of
the model's embedding of a token and of a hidden row, then a few narrow layers of Gemma 4's shape without keys of their
own. Each attends to the cache of the model's last layer with a window, or without one, as it has itself. All guesses
stand one position after the last cached token. Hidden rows are the model's, normed, or a product of the head's own.
Files may name groups of tokens (`masked_embd_*`), of which transformers searches the likeliest alone. They are not
read, so all logits are known; llama.cpp's converter leaves them out.
Source: transformers' Gemma4AssistantForCausalLM, and llama.cpp's gemma4-assistant. Raises BadGGUF for missing tensors
or wrong shapes, BadSetting for another model's head.
"""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.errors import BadGGUF, BadSetting
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import Rows
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.join_parts import JoinParts
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.scale import Scale
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.models.blocks import attention, feed_forward, norm, rejoin
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.rope import local_rope_table, rope_table
from edgeinfer.models.sizes import PATTERN, Sizes, windows
from edgeinfer.models.trained_heads import TrainedHead

KEY = "gemma4-assistant"
MODEL_KEY = "gemma4"
WIDTH = "embedding_length_out"
"""Key with the width of the model's rows."""
EMBEDDING = "model.token_embd.weight"
"""The model's embedding, beside the head's own `token_embd.weight`, which is its output product."""


def build(hp: Hyperparameters, model: ModelSpec) -> TrainedHead:
    """The head of a file for a Gemma 4 that has been opened."""
    g = ModelGraph(hp, Sizes.read(hp, guessing=True))
    for kept in model.kv:
        g.cache(kept)
    if hp.flags(PATTERN) is None:
        raise BadGGUF(f"the file has no array {hp.architecture}.{PATTERN}, which says which layers have a window")
    _embed(g)
    for number, window in enumerate(windows(hp, g.sizes)):
        g.stage(f"blk.{number}")
        norm(g, "attn_norm")
        _attend(g, window, _cache_of(model, hp, g, window))
        rejoin(g, "post_attention_norm")
        norm(g, "ffn_norm")
        feed_forward(g, "gelu_tanh", out="branch")
        rejoin(g, "post_ffw_norm")
        factor = hp.vector(f"{g.prefix}layer_output_scale.weight", 1)
        g.add(Scale("x", g.sizes.width, 1.0, factor))
    _head(g)
    return TrainedHead(replace(g.spec(), kv=()), (), "next_rows")


def _embed(g: ModelGraph) -> None:
    """The product of a token's embedding, scaled as in the model, and the hidden row that comes with it, in `x`."""
    hp, width, given = g.hp, g.sizes.width, g.hp.integer(WIDTH)
    g.stage("embed")
    embedded, hidden, joined = g.buffer("embedded", given), g.buffer("given", given), g.buffer("joined", 2 * given)
    g.add(Embed(hp.columns_of(EMBEDDING, given), embedded, given**0.5), HiddenRows(hidden, given))
    g.add(JoinParts((embedded, hidden), joined, given))
    g.add(MatMul(joined, g.buffer("x", width), hp.matrix("nextn.pre_projection.weight", (width, 2 * given))))


def _cache_of(model: ModelSpec, hp: Hyperparameters, g: ModelGraph, window: int | None) -> int:
    """The number of the cache of the model's last layer that has a window too, or none."""
    sizes = g.sizes
    last = next((op for op in reversed(list(model.ops())) if _is_like(op, window)), None)
    own = sizes.kv_heads, sizes.head_width, sizes.value_width
    if not isinstance(last, Attention) or (last.kv_heads, last.key_width, last.value_width) != own:
        there = "none" if not isinstance(last, Attention) else f"{last.kv_heads} heads of {last.key_width} numbers"
        raise BadSetting(
            f"{hp.name} attends to keys of {own[0]} heads of {own[1]} numbers in layers "
            f"{'without a window' if window is None else 'with a window'}, and the model has {there}"
        )
    if window == 1:
        raise BadGGUF(f"{hp.architecture} has windows of 1 position, in which a guess sees nothing of the text")
    if window is not None and last.window is not None and window > last.window:
        raise BadSetting(f"{hp.name} attends to {window} positions in layers with a window, the model to {last.window}")
    return last.layer


def _is_like(op: object, window: int | None) -> bool:
    """Whether an op is attention with a window too, or without one."""
    return isinstance(op, Attention) and (op.window is None) is (window is None)


def _attend(g: ModelGraph, window: int | None, cache: int) -> None:
    """Attention of a layer, written to `branch`.

    Tokens are evaluated at the position of the last cached token, and turn as at the next one, where they stand: a
    window that ends there has one position less before it.
    """
    table = rope_table if window is None else local_rope_table
    rope = replace(table(g.hp, g.sizes.rotary_width), ahead=1)
    seen = None if window is None else window - 1
    attention(g, rope, window=seen, scale=1.0, head_norms=True, shared=cache, bare_values=True, out="branch")


def _head(g: ModelGraph) -> None:
    """Norm of the requested rows, the product that the next guess reads, and that of the logits."""
    hp, width, given = g.hp, g.sizes.width, g.hp.integer(WIDTH)
    g.stage("head")
    taken, normed = g.buffer("x_out", width, Rows.OUTPUTS), g.buffer("normed_out", width, Rows.OUTPUTS)
    following = g.buffer("next_rows", given, Rows.OUTPUTS)
    logits = g.buffer("logits", g.sizes.n_vocab, Rows.OUTPUTS)
    weight = hp.vector("output_norm.weight", width)
    g.add(TakeOutputs("x", taken, width), RMSNorm(taken, normed, weight, width, g.sizes.epsilon))
    g.add(MatMul(normed, following, hp.matrix("nextn.post_projection.weight", (given, width))))
    g.add(MatMul(normed, logits, hp.matrix("token_embd.weight", (g.sizes.n_vocab, width))))
