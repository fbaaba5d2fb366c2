"""LoRA adapters of a model: low-rank products added to the products with its matrices (Hu et al., arXiv 2106.09685).

In: a ModelSpec, the tensor table of its file with adapters opened beside it. Out: a ModelSpec that adds scale * alpha /
rank * B (A x) to each product W x for which an adapter has A and B. The scale is a number of the pass for each row; it
is that of the adapter if the pass states none. Experts have an A and a B each. To the embedding of a token it adds B
times the token's row of A; if the embedding is the output matrix too, products with it change as if the adapter were
merged into it. Weights stay as they are in the file. Norms that an adapter has besides are left out. Source of names,
keys and shapes: llama.cpp's convert_lora_to_gguf.py and llama-adapter.cpp; of products with experts: `build_lora_mm_id`
in its llama-graph.cpp, except that factors of experts (Gemma 4) multiply what is added too, as if it were merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgeinfer.errors import BadGGUF, BadSetting
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, Rows, Weight
from edgeinfer.graph.ops.add_scaled import AddScaled
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.experts import ExpertAdapter, Experts, Stack
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.graph.ops.zero import Zero
from edgeinfer.models.gguf.adapter import DOWN, EMBEDDING, TRANSPOSED, UP, Adapter
from edgeinfer.models.gguf.header import TensorInfo

NORM = "_norm.weight"
"""How names of norms end, which mergekit-extract-lora writes; llama.cpp leaves them out too."""
INVOKED = "adapter.alora.invocation_tokens"


@dataclass(frozen=True, slots=True)
class LowRank:
    """What one adapter adds to products with one matrix, or to the embedding: scale * factor * B (A x).

    Those of stacked matrices are stacks, viewed as the rows of one matrix.
    """

    down: Weight
    up: Weight
    number: int
    factor: float
    scale: float

    @property
    def flipped(self) -> LowRank:
        """The same of the embedding in products with it: A transposed B, B the rows of A by token."""
        rank, width = self.up.columns, self.up.n_rows
        return replace(self, down=Weight(self.up.tensor + TRANSPOSED, 0, rank, width), up=self.down)

    def of_experts(self, stack: Stack, matrices: Sequence[Weight], out: str) -> ExpertAdapter:
        """The same for each expert, whose matrices are these."""
        rank, columns = self.up.columns, self.down.columns
        lora_a = (Weight(self.down.tensor, at * rank, (at + 1) * rank, columns) for at in range(len(matrices)))
        lora_b = (replace(weight, tensor=self.up.tensor, columns=rank) for weight in matrices)
        return ExpertAdapter(stack, tuple(lora_a), tuple(lora_b), self.number, self.factor, self.scale, out)


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
    _check_uses(spec, added, tensors)
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
    names = (name for name in own if not name.endswith((NORM, TRANSPOSED)))
    matrices = dict.fromkeys(name.removesuffix(DOWN).removesuffix(UP) for name in names)
    if not matrices:
        raise BadGGUF(f"{adapter.path} holds no matrices")
    for matrix in matrices:
        down, up = own.get(matrix + DOWN), own.get(matrix + UP)
        if down is None or up is None:
            raise BadGGUF(f"{adapter.path} lacks one of {(matrix + DOWN)[:80]!r} and {(matrix + UP)[:80]!r}")
        base = tensors.get(matrix)
        if base is None:
            raise BadSetting(f"{adapter.path} changes {matrix[:80]!r}, which the model does not have")
        *stack, rows, columns = base.shape if len(base.shape) > 1 else (0, 0)
        rank = up.shape[-1] if up.shape else 0
        shapes = (*stack, rank, columns), (*stack, rows, rank)
        if matrix == EMBEDDING:
            shapes = (rows, rank), (columns, rank)
        if not rank or (down.shape, up.shape) != shapes:
            raise BadGGUF(
                f"{adapter.path} has {list(down.shape)} and {list(up.shape)} for {matrix!r} of {list(base.shape)}: it "
                "was made for a model of another size"
            )
        yield matrix, LowRank(_whole(down), _whole(up), number, alpha / rank if alpha else 1.0, adapter.scale)


def _whole(matrix: TensorInfo) -> Weight:
    """All rows of a matrix, or of a stack of them."""
    *rows, columns = matrix.shape
    return Weight(matrix.name, 0, math.prod(rows), columns)


def _check_uses(spec: ModelSpec, added: Mapping[str, Sequence[LowRank]], tensors: Mapping[str, TensorInfo]) -> None:
    """Raises BadSetting for a matrix that the model uses other than in products, as experts or as its embedding."""
    for matrix, low_ranks in added.items():
        ops = [op for op in spec.ops() if any(weight.tensor == matrix for weight in op.matrices)]
        if not _is_adaptable(matrix, ops, is_stack=len(tensors[matrix].shape) > 2):
            raise BadSetting(
                f"an adapter changes {matrix!r}, which {spec.architecture} does not only multiply rows by; merge the "
                "adapter into the model"
            )
        is_tied = matrix == EMBEDDING and any(isinstance(op, MatMul) for op in ops)
        if is_tied and any(each.flipped.down.tensor not in tensors for each in low_ranks):
            raise BadSetting(
                f"an adapter changes {matrix!r}, which this model also multiplies its output by, with B in a quantised "
                "format; convert the adapter to F16 or F32"
            )


def _is_adaptable(matrix: str, ops: Sequence[Op], *, is_stack: bool) -> bool:
    """Whether the ops that use a matrix, or a stack of them, use it only as adapters expect."""
    uses = {type(op) for op in ops}
    if uses == {Experts}:
        stacks = [each for op in ops if isinstance(op, Experts) for each in op.stacks]
        own = [each for each in stacks if any(weight.tensor == matrix for weight in each)]
        return all((is_stack or len(each) == 1) and {weight.tensor for weight in each} == {matrix} for each in own)
    return not is_stack and uses in (({Embed}, {Embed, MatMul}) if matrix == EMBEDDING else ({MatMul},))


def _with_added(
    op: Op, added: Mapping[str, Sequence[LowRank]], spec: ModelSpec, buffers: dict[str, Buffer]
) -> Iterator[Op]:
    """An op, and what adapters add to it; notes the buffers in between."""
    if isinstance(op, Experts):
        yield from _experts_with_added(op, added, spec, buffers)
        return
    yield op
    if not isinstance(op, MatMul | Embed):
        return
    for low_rank in added.get(op.weight.tensor, ()):
        is_tied = isinstance(op, MatMul) and op.weight.tensor == EMBEDDING
        each = low_rank.flipped if is_tied else low_rank
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


def _experts_with_added(
    op: Experts, added: Mapping[str, Sequence[LowRank]], spec: ModelSpec, buffers: dict[str, Buffer]
) -> Iterator[Op]:
    """Experts with what adapters add to their products; what they add to down products has a buffer of its own."""
    adapters: list[ExpertAdapter] = []
    rows, width = spec.buffer(op.out).rows, op.down[0].n_rows
    stacks: tuple[tuple[Stack, tuple[Weight, ...]], ...] = ("gate", op.gate), ("up", op.up), ("down", op.down)
    for stack, matrices in stacks:
        for low_rank in added.get(matrices[0].tensor, ()) if matrices else ():
            out = f"experts' sum in {op.out} of adapter {low_rank.number}" if stack == "down" else ""
            adapters.append(low_rank.of_experts(stack, matrices, out))
    sums = [adapter for adapter in adapters if adapter.out]
    for each in sums:
        buffers.setdefault(each.out, Buffer(each.out, spec.buffer(op.out).width, rows, adapter=each.adapter))
        yield Zero(each.out, width)
    yield replace(op, adapters=tuple(adapters))
    for each in sums:
        yield AddScaled(each.out, op.out, width, each.adapter, each.factor, each.scale)
