"""The layers of image encoders, each a function that adds ops to a `ModelGraph`: vision transformers and their kin.

In: a graph, and how a family's layers differ. Out: ops that read and write the buffer `x`. Uses the tensor names of
llama.cpp's converter (`v.blk.N.…`; `a.blk.N.…` for sound). All layers share one KV cache, since a layer's keys are read
by no other one.
Sources: ViT (arXiv 2010.11929), SigLIP (arXiv 2303.15343). Raises BadGGUF for missing tensors or wrong shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isqrt

from edgeinfer.errors import BadGGUF
from edgeinfer.graph.activations import Activation
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.operands import PagedKV, RowOrder, Weight
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.mul_vector import MulVector
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.store_kv import StoreKV
from edgeinfer.graph.rotary import RopeSections, RopeTable
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import LAYERS_MAX, LayerSizes, Norms, Sizes

KEYS = "vision."
CACHE = 0
"""The number of the cache that all layers share."""


def sizes_of(hp: Hyperparameters, n_most: int, norms: Norms = "layer", head_width: int = 0, keys: str = KEYS) -> Sizes:
    """The sizes of an encoder's layers, from the keys that all projector files have. `n_most`: most patches."""
    n_layers = hp.integer(f"{keys}block_count", most=LAYERS_MAX)
    width, heads = hp.integer(f"{keys}embedding_length"), hp.integer(f"{keys}attention.head_count")
    own = head_width or width // heads
    if not head_width and own * heads != width:
        raise BadGGUF(f"{hp.architecture}.{keys}attention.head_count is {heads}, and the width {width}")
    kv_heads = hp.integer(f"{keys}attention.head_count_kv", heads)
    ffn_width = _ffn_width(hp, width) if keys == KEYS else hp.integer(f"{keys}feed_forward_length")
    layer = LayerSizes(heads, kv_heads, ffn_width, own, own, own)
    return Sizes(
        n_layers=n_layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_width=own,
        value_width=own,
        rotary_width=own,
        ffn_width=layer.ffn_width,
        n_vocab=0,
        n_context_trained=n_most,
        epsilon=hp.positive(f"{keys}attention.layer_norm_epsilon", 1e-6),
        attends=(True,) * n_layers,
        layers=(layer,) * n_layers,
        norms=norms,
    )


def _ffn_width(hp: Hyperparameters, width: int) -> int:
    """The width of feed-forward branches; Qwen2-VL's files name another one, and older converters none."""
    info = hp.tensors.get("v.blk.0.ffn_up.weight")
    if info is None or len(info.shape) != 2:
        return hp.integer(f"{KEYS}feed_forward_length")
    return info.shape[1] if info.shape[0] == width else info.shape[0]


def embed_patches(g: ModelGraph, patch: int, *, positions: bool, n_frames: int = 1, bias: bool = True) -> None:
    """Write the product of each patch to `x`, and add its position, which comes after the patch in its hidden row.

    `n_frames`: kernels of as many frames that are added, each of the same patch. `bias`: whether the product has the
    file's bias, if there is one.
    """
    g.stage("embed", "v.")
    width, columns = g.sizes.width, 3 * patch * patch
    patches, x = g.buffer("patches", columns), g.buffer("x", width)
    g.add(HiddenRows(patches, columns))
    for frame in range(n_frames):
        name = "v.patch_embd.weight" + (f".{frame}" if frame else "")
        added = g.hp.bias("v.patch_embd.bias", width) if bias and frame == 0 else None
        g.add(MatMul(patches, x, g.hp.kernel(name, width, columns), added, accumulate=frame > 0))
    if positions:
        places = g.buffer("normed", width)
        g.add(HiddenRows(places, width, columns), Add(places, x, width))


def norm(g: ModelGraph, tensor: str, source: str = "x", out: str = "normed", width: int = 0) -> None:
    """The encoder's norm of `source`: a LayerNorm if it has a bias in the file, else what the sizes say."""
    width = width or g.sizes.width
    weight, bias = g.hp.vector(f"{tensor}.weight", width), g.hp.bias(f"{tensor}.bias", width)
    g.add(_norm(g, g.buffer(source, width), g.buffer(out, width), weight, bias, width))


def _norm(
    g: ModelGraph, source: str, out: str, weight: Weight, bias: Weight | None, width: int, groups: int = 1
) -> LayerNorm | RMSNorm:
    if g.sizes.norms == "rms" and bias is None:
        return RMSNorm(source, out, weight, width, g.sizes.epsilon, groups)
    return LayerNorm(source, out, weight, bias, width, g.sizes.epsilon, groups)


def attention(
    g: ModelGraph,
    rope: RopeTable | None = None,
    sections: RopeSections | None = None,
    *,
    scale: float | None = None,
    out: str = "x",
    spans: bool = False,
    order: RowOrder | None = None,
) -> None:
    """Attention of all patches to all, or, with `spans`, to those that a pass states for each; reads `normed`.

    `order`: of the rows of queries and keys, where a rotary embedding turns other pairs than ours does.
    """
    sizes, prefix = g.sizes, g.prefix
    width, own = sizes.width, sizes.head_width
    counts = {"query": sizes.heads, "key": sizes.kv_heads, "value": sizes.kv_heads}
    fused, start = f"{prefix}attn_qkv.weight" in g.hp.tensors, 0
    total = sum(counts.values()) * own
    for name, count in counts.items():
        tensor, rows = (
            (f"{prefix}attn_qkv", (start, start + count * own)) if fused else (f"{prefix}attn_{name[0]}", None)
        )
        n_rows = total if fused else count * own
        buffer = g.buffer(name, count * own, heads=count)
        moved = None if name == "value" else order
        weight = g.hp.matrix(f"{tensor}.weight", (n_rows, width), rows, moved)
        g.add(MatMul("normed", buffer, weight, g.hp.bias(f"{tensor}.bias", n_rows, rows, moved)))
        start += count * own
    for name in ("query", "key"):
        _norm_heads(g, name, f"{prefix}attn_{name[0]}_norm", counts[name])
        if rope is not None:
            g.add(Rope(name, counts[name], own, rope, sections))
    g.add(StoreKV("key", "value", CACHE, sizes.kv_heads, own, own))
    attended = "normed" if sizes.heads * own == width else g.buffer("attended", sizes.heads * own, heads=sizes.heads)
    scale = own**-0.5 if scale is None else scale
    heads = sizes.heads, sizes.kv_heads
    g.add(Attention("query", attended, CACHE, *heads, own, own, scale, causal=False, spans=spans))
    tensor = f"{prefix}attn_out"
    weight = g.hp.matrix(f"{tensor}.weight", (width, sizes.heads * own))
    g.add(MatMul(attended, g.buffer(out, width), weight, g.hp.bias(f"{tensor}.bias", width), accumulate=out == "x"))


def _norm_heads(g: ModelGraph, value: str, tensor: str, heads: int) -> None:
    """Norm each head, or all together if the file has as many factors; nothing if it has none."""
    own, info = g.sizes.head_width, g.hp.tensors.get(f"{tensor}.weight")
    if info is None:
        return
    width, groups = (heads * own, 1) if info.shape == (heads * own,) else (own, heads)
    weight, bias = g.hp.vector(f"{tensor}.weight", width), g.hp.bias(f"{tensor}.bias", width)
    g.add(_norm(g, value, value, weight, bias, width, groups))


def feed_forward(g: ModelGraph, activation: Activation, out: str = "x") -> None:
    """The feed-forward branch, which reads `normed`; with a gate if the file has one.

    Files of older converters have the names of the two matrices exchanged.
    """
    hp, width, ffn = g.hp, g.sizes.width, g.sizes.ffn_width
    up, down = f"{g.prefix}ffn_up", f"{g.prefix}ffn_down"
    if f"{g.prefix}ffn_gate.weight" not in hp.tensors and _rows_of(hp, up) == width != ffn:
        up, down = down, up
    raised = hidden = g.buffer("up", ffn)  # activated in place: there are thousands of patches
    g.add(MatMul("normed", raised, hp.matrix(f"{up}.weight", (ffn, width)), hp.bias(f"{up}.bias", ffn)))
    gate = f"{g.prefix}ffn_gate"
    if f"{gate}.weight" in hp.tensors:
        hidden = gated = g.buffer("gate", ffn)
        g.add(MatMul("normed", gated, hp.matrix(f"{gate}.weight", (ffn, width)), hp.bias(f"{gate}.bias", ffn)))
        g.add(GatedAct(gated, raised, hidden, ffn, activation))
    else:
        g.add(Act(raised, hidden, ffn, activation))
    weight, bias = hp.matrix(f"{down}.weight", (width, ffn)), hp.bias(f"{down}.bias", width)
    g.add(MatMul(hidden, g.buffer(out, width), weight, bias, accumulate=out == "x"))


def _rows_of(hp: Hyperparameters, tensor: str) -> int:
    info = hp.tensors.get(f"{tensor}.weight")
    return 0 if info is None else info.shape[0]


def layers(
    g: ModelGraph,
    activation: Activation,
    rope: RopeTable | None = None,
    sections: RopeSections | None = None,
    n_layers: int = 0,
) -> None:
    """Pre-normed layers, all or the first `n_layers`."""
    shared_cache(g)
    for number in range(n_layers or g.sizes.n_layers):
        layer(g, number, activation, rope, sections)


def shared_cache(g: ModelGraph) -> None:
    """The KV cache of all layers."""
    g.cache(PagedKV(g.sizes.kv_heads, g.sizes.head_width, g.sizes.head_width))


def layer(
    g: ModelGraph,
    number: int,
    activation: Activation,
    rope: RopeTable | None = None,
    sections: RopeSections | None = None,
    *,
    spans: bool = False,
    order: RowOrder | None = None,
    blocks: str = "v.blk.",
) -> None:
    """A pre-normed layer as a stage. `spans`, `order`: as `attention` has them. `blocks`: how names begin."""
    g.stage(f"blk.{number}", f"{blocks}{number}.")
    norm(g, f"{g.prefix}ln1")
    _add_scaled(g, "ls1", lambda out: attention(g, rope, sections, out=out, spans=spans, order=order))
    norm(g, f"{g.prefix}ln2")
    _add_scaled(g, "ls2", lambda out: feed_forward(g, activation, out))


def axial_rope(head_width: int, base: float = 10000.0, shift: float = 0.0) -> tuple[RopeTable, RopeSections]:
    """A rotary embedding whose first pairs turn by the row of a patch and the others by its column.

    Both have the same frequencies, or, with a `shift`, those of columns are so far between those of rows. Raises
    BadGGUF for heads that cannot be cut so.
    """
    if head_width % 4:
        raise BadGGUF(f"heads are {head_width} wide; a rotary embedding over two axes needs a multiple of 4")
    n_pairs = head_width // 4
    frequencies = tuple(base ** -((pair + own) / n_pairs) for own in (0.0, shift) for pair in range(n_pairs))
    return RopeTable(base, head_width, given=frequencies), RopeSections(0, n_pairs, n_pairs)


def _add_scaled(g: ModelGraph, factors: str, branch: Callable[[str], None]) -> None:
    """Add a branch to `x`, its numbers multiplied by factors if the file has them (layer scale)."""
    name, width = f"{g.prefix}{factors}.weight", g.sizes.width
    if name not in g.hp.tensors:
        branch("x")
        return
    branch("branch")
    g.add(MulVector(g.hp.vector(name, width), "branch", width), Add("branch", "x", width))


def square_grid(hp: Hyperparameters, side: int, patch: int, block: int) -> tuple[int, int]:
    """Patches down and across a square of `side` pixels, cut into blocks of block x block. Raises BadGGUF."""
    n, rest = divmod(side, patch)
    if rest or n % block:
        raise BadGGUF(
            f"{hp.architecture}.{KEYS}image_size is {side}: no whole blocks of {block} x {block} patches of {patch}"
        )
    return n, n


def layers_from(first: int, n_layers: int) -> str:
    """An alternative of a pattern: the tensors of layers that do not run, for `ImageEncoder.unread`."""
    numbers = "|".join(map(str, range(first, n_layers)))
    return rf"|v\.blk\.({numbers})\..*" if numbers else ""


def square_table(hp: Hyperparameters, width: int) -> Weight:
    """The table of positions of a square grid of any size. Raises BadGGUF."""
    table = hp.columns_of("v.position_embd.weight", width)
    if isqrt(table.n_rows) ** 2 != table.n_rows:
        raise BadGGUF(f"v.position_embd.weight has {table.n_rows} positions, which are no square")
    return table


def rows_of(hp: Hyperparameters, name: str) -> int:
    """How many rows a matrix of the file has. Raises BadGGUF."""
    info = hp.tensors.get(name)
    if info is None or len(info.shape) != 2:
        raise BadGGUF(f"the file has no matrix {name}, which its projector needs")
    return info.shape[0]


def activation_of(hp: Hyperparameters) -> Activation:
    """The activation of feed-forward branches that a file names; CLIP's is the one without a name."""
    if hp.flag("use_silu", default=False):
        return "silu"
    if not hp.flag("use_gelu", default=False):
        return "gelu_quick"
    return "gelu_tanh"


def normalisation(hp: Hyperparameters) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of red, green and blue, of numbers from 0 to 1. Raises BadGGUF."""
    prefix = f"{hp.architecture}.{KEYS}"
    mean, deviation = hp.numbers(f"{prefix}image_mean", 3), hp.numbers(f"{prefix}image_std", 3)
    if min(deviation) <= 0:
        raise BadGGUF(f"{prefix}image_std is {deviation}; pixels cannot be divided by that")
    return mean, deviation


def begun(hp: Hyperparameters, n_most: int, norms: Norms = "layer", head_width: int = 0) -> ModelGraph:
    """An empty graph for the layers of an encoder. `n_most`: most patches of a tile."""
    return ModelGraph(hp, sizes_of(hp, n_most, norms, head_width))


def begun_projection(hp: Hyperparameters, n_most: int, joined: int, width: int) -> ModelGraph:
    """A graph that begins with rows of `joined` numbers in the buffer `joined`; its result has rows of `width`.

    `n_most`: most of these rows of a tile.
    """
    layer = LayerSizes(1, 1, width, width, width, width)
    sizes = Sizes(1, width, 1, 1, width, width, width, width, 0, n_most, 1e-6, (False,), (layer,))
    g = ModelGraph(hp, sizes)
    g.stage("embed", "mm.")
    g.add(HiddenRows(g.buffer("joined", joined), joined))
    return g


def product(g: ModelGraph, source: str, out: str, tensor: str, rows: int, columns: int) -> None:
    """out = source times a matrix of the file, with its bias if it has one."""
    weight = g.hp.matrix(f"{tensor}.weight", (rows, columns))
    g.add(MatMul(source, g.buffer(out, rows), weight, g.hp.bias(f"{tensor}.bias", rows)))


def turned_product(g: ModelGraph, source: str, out: str, tensor: str, rows: int, columns: int) -> None:
    """The same with a matrix that is stored transposed."""
    g.add(MatMul(source, g.buffer(out, rows), g.hp.turned(f"{tensor}.weight", (rows, columns))))


def end(g: ModelGraph, source: str = "x") -> ModelSpec:
    """The graph, whose result is a buffer. Bits of images need not be those of other machines."""
    return replace(g.spec(source).with_precision("high"), scratch=True)
