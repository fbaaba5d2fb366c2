"""LoRA adapters of a model: low-rank products added to the products with its matrices (Hu et al., arXiv 2106.09685).

In: a ModelSpec, the tensor table of its file with adapters opened beside it. Out: a ModelSpec that adds scale * alpha /
rank * B (A x) to each product W x for which an adapter has A and B. The scale is a number of the pass for each row; it
is that of the adapter if the pass states none. To the embedding of a token it adds B times the token's row of A.
Weights stay as they are in the file. Matrices of experts are refused: they are not products of all rows. Norms that an
adapter has besides are left out. Source of names, keys and shapes: llama.cpp's convert_lora_to_gguf.py and
llama-adapter.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgeinfer.errors import BadGGUF, BadSetting
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, Rows, Weight
from edgeinfer.graph.ops.add_scaled import AddScaled
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.models.gguf.adapter import Adapter
from edgeinfer.models.gguf.header import TensorInfo

DOWN, UP = ".lora_a", ".lora_b"
"""How names of A (rank, columns) and B (rows, rank) end; of the embedding, A is (vocabulary, rank), B (width, rank)."""
EMBEDDING = "token_embd.weight"
NORM = "_norm.weight"
"""How names of norms end, which mergekit-extract-lora writes; llama.cpp leaves them out too."""
INVOKED = "adapter.alora.invocation_tokens"


@dataclass(frozen=True, slots=True)
class LowRank:
    """What one adapter adds to products with one matrix, or to the embedding: scale * factor * B (A x)."""

    down: Weight
    up: Weight
    number: int
    factor: float
    scale: float


def with_adapters(spec: ModelSpec, tensors: Mapping[str, TensorInfo], adapters: Sequence[Adapter]) -> ModelSpec:
    """The model with these adapters, whose tensors are in `tensors`.

    Raises BadSetting for an adapter of another kind of model, or of weights that cannot be adapted, and BadGGUF
    for one with tensors missing or of other shapes.
    """
    added: dict[str, list[LowRank]] = {}
    for number, adapter in enumerate(adapters):
        _check(adapter, spec)
        for matrix, low_rank in _pairs(adapter, number, tensors):
            added.setdefault(matrix, []).append(low_rank)
    _check_uses(spec, added)
    buffers: dict[str, Buffer] = {}
    stages = [
        replace(stage, ops=tuple(each for op in stage.ops for each in _with_added(op, added, spec, buffers)))
        for stage in spec.stages
    ]
    return replace(spec, stages=tuple(stages), buffers=(*spec.buffers, *buffers.values()))


def _check(adapter: Adapter, spec: ModelSpec) -> None:
    """Raises BadSetting unless the file is a LoRA adapter of this architecture."""
    metadata = adapter.metadata
    if metadata.text("general.type", "model") != "adapter" or metadata.text("adapter.type", "lora") != "lora":
        raise BadSetting(f"{adapter.path} is not a LoRA adapter, which --lora is for; give a model with -m")
    architecture = metadata.text("general.architecture")
    if architecture != spec.architecture:
        raise BadSetting(
            f"{adapter.path} is an adapter of {architecture[:80]} models, and this model is {spec.architecture}"
        )
    if INVOKED in metadata:
        raise BadSetting(f"{adapter.path} is switched on by a text (activated LoRA), which edgeinfer lacks")


def _pairs(adapter: Adapter, number: int, tensors: Mapping[str, TensorInfo]) -> Iterator[tuple[str, LowRank]]:
    """The matrices that an adapter adds to, by name."""
    alpha = adapter.metadata.number("adapter.lora.alpha", 0.0)
    own = {name.removeprefix(adapter.prefix): info for name, info in tensors.items() if name.startswith(adapter.prefix)}
    matrices = dict.fromkeys(name.removesuffix(DOWN).removesuffix(UP) for name in own if not name.endswith(NORM))
    if not matrices:
        raise BadGGUF(f"{adapter.path} holds no matrices")
    for matrix in matrices:
        down, up = own.get(matrix + DOWN), own.get(matrix + UP)
        if down is None or up is None:
            raise BadGGUF(f"{adapter.path} lacks one of {(matrix + DOWN)[:80]!r} and {(matrix + UP)[:80]!r}")
        base = tensors.get(matrix)
        if base is None:
            raise BadSetting(f"{adapter.path} changes {matrix[:80]!r}, which the model does not have")
        if len(base.shape) != 2:
            raise BadSetting(
                f"{adapter.path} changes {matrix!r}: edgeinfer does not adapt experts' matrices; merge the adapter "
                "into the model"
            )
        rows, columns = base.shape
        rank = up.shape[-1] if up.shape else 0
        shapes = ((rows, rank), (columns, rank)) if matrix == EMBEDDING else ((rank, columns), (rows, rank))
        if not rank or (down.shape, up.shape) != shapes:
            raise BadGGUF(
                f"{adapter.path} has {list(down.shape)} and {list(up.shape)} for {matrix!r} of {list(base.shape)}: it "
                "was made for a model of another size"
            )
        yield matrix, LowRank(_whole(down), _whole(up), number, alpha / rank if alpha else 1.0, adapter.scale)


def _whole(matrix: TensorInfo) -> Weight:
    """All rows of a matrix."""
    rows, columns = matrix.shape
    return Weight(matrix.name, 0, rows, columns)


def _check_uses(spec: ModelSpec, added: Mapping[str, Sequence[LowRank]]) -> None:
    """Raises BadSetting for a matrix that the model uses other than in a product, or as its embedding."""
    for matrix in added:
        kind = Embed if matrix == EMBEDDING else MatMul
        uses = {type(op) for op in spec.ops() if any(weight.tensor == matrix for weight in op.matrices)}
        if uses == {Embed, MatMul} and kind is Embed:
            raise BadSetting(
                f"an adapter changes {matrix!r}, which this model also multiplies its output by; merge the adapter "
                "into the model"
            )
        if uses != {kind}:
            raise BadSetting(
                f"an adapter changes {matrix!r}, which {spec.architecture} does not only multiply rows by; merge the "
                "adapter into the model"
            )


def _with_added(
    op: Op, added: Mapping[str, Sequence[LowRank]], spec: ModelSpec, buffers: dict[str, Buffer]
) -> Iterator[Op]:
    """An op, and what adapters add to it; notes the buffers in between."""
    yield op
    if not isinstance(op, MatMul | Embed):
        return
    for each in added.get(op.weight.tensor, ()):
        rank, rows = each.up.columns, spec.buffer(op.out).rows
        suffix = "" if rows is Rows.TOKENS else " of outputs"
        low, high = f"rank {rank} of adapter {each.number}{suffix}", f"added to {op.out} by adapter {each.number}"
        # only one of these is in use at a time, so they may share memory
        place = next((name for name, kept in buffers.items() if kept.rows is rows and name.startswith("added")), "")
        buffers.setdefault(low, Buffer(low, rank, rows, adapter=each.number))
        width = spec.buffer(op.out).width  # that of the widest layer, so that rows of both lie alike
        buffers.setdefault(high, Buffer(high, width, rows, "" if place == high else place, each.number))
        if isinstance(op, Embed):
            up = each.up
            yield TokenRows(each.down, low, op.scale)
        else:
            up = replace(op.weight, tensor=each.up.tensor, columns=rank)
            yield MatMul(op.source, low, each.down)
        yield MatMul(low, high, up)
        yield AddScaled(high, op.out, up.n_rows, each.number, each.factor, each.scale)
