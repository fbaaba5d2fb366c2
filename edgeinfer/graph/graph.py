"""ModelSpec: a whole model as data: its sizes, its buffers, and its ops stage by stage; and parts of it for one device.

An architecture builds it from GGUF metadata alone (no weights needed); devices, the planner and `plan` read it. A
`Fragment` is what one device runs between two exchanges of activations. Independent of where the weights are stored and
of what runs them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, LayerState, PagedKV, Precision, Weight
from edgeinfer.graph.ops.add_scaled import AddScaled
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.deep_rows import DeepRows
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.ops.token_rows import TokenRows
from edgeinfer.graph.step import Inputs

Bend: TypeAlias = Literal["tanh", "gelu", "relu"]
Row: TypeAlias = Literal["first", "last", "mean"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive ops that are placed together: "embed", "blk.0", …, "head"."""

    name: str
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class RankHead:
    """The ranking head, which turns a pooled hidden row into scores.

    `dense`, if present, is a product, followed by `bend`, then by a LayerNorm with the weight `norm` if there is one;
    `out` is the final product. Each product has an optional bias. `row`: what it reads, the row of the first or of the
    last token, or the mean of all.
    """

    dense: tuple[Weight | None, Weight | None]
    out: tuple[Weight, Weight | None]
    norm: Weight | None = None
    epsilon: float = 0.0
    bend: Bend = "tanh"
    row: Row = "first"

    def weights(self) -> Iterator[Weight]:
        """The weights that are present."""
        yield from (weight for weight in (*self.dense, *self.out, self.norm) if weight is not None)


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The longest context for which a spec is right, and what longer ones would need."""

    n_tokens: int
    reason: str


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as data. Its last op writes the result into the buffer `logits`.

    `logits` is float32[O, n_vocab], or hidden rows for a model without logits. `head_width`: width of the keys' heads.
    `dense`: matrices applied in turn to a pooled row of hidden states. `rank`: the ranking head of a reranker.
    `limit`: None if the spec is right for every context. `most_whole`: most rows of an image that see each other, so
    that they must be in one pass; 0 if none do. `scratch`: nothing but the result is read after a pass, so that buffers
    may share memory.
    """

    architecture: str
    name: str
    n_layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    n_vocab: int
    n_context_trained: int
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]
    kv: tuple[PagedKV, ...]
    states: tuple[LayerState, ...] = ()
    dense: tuple[Weight, ...] = ()
    rank: RankHead | None = None
    logits: str = "logits"
    limit: ContextLimit | None = None
    most_whole: int = 0
    scratch: bool = False

    def ops(self) -> Iterator[Op]:
        """All ops in order."""
        for stage in self.stages:
            yield from stage.ops

    def weights(self) -> Iterator[Weight]:
        """All weights the ops read, once per op that reads them (a tied head lists the embedding again)."""
        for op in self.ops():
            yield from op.matrices
            yield from op.vectors

    @property
    def has_experts(self) -> bool:
        """Whether the model is a mixture of experts."""
        return any(isinstance(op, Experts) for op in self.ops())

    @property
    def output_width(self) -> int:
        """Width of the rows a pass returns: the vocabulary size, or the hidden width for a model without logits."""
        return self.buffer(self.logits).width

    @property
    def inputs(self) -> Inputs:
        """What passes accept besides token ids."""
        takes_rows = any(isinstance(op, Embed) and op.rows for op in self.ops())
        row_width = max((op.first + op.width for op in self.ops() if isinstance(op, DeepRows)), default=self.width)
        takes_axes = any(isinstance(op, Rope) and op.sections is not None for op in self.ops())
        has_spans = any(isinstance(op, Attention) and op.spans for op in self.ops())
        hidden_width = max((op.first + op.width for op in self.ops() if isinstance(op, HiddenRows)), default=0)
        own = row_width if takes_rows else 0, takes_axes, self.scales, hidden_width
        return Inputs(*own, spans=has_spans, most_whole=self.most_whole)

    @property
    def scales(self) -> tuple[float, ...]:
        """The scale of each LoRA adapter in passes that state none."""
        stated: dict[int, float] = {}
        for op in self.ops():
            if isinstance(op, AddScaled):
                stated[op.adapter] = op.scale
            elif isinstance(op, Experts):
                stated.update((each.adapter, each.scale) for each in op.adapters)
        numbers = [*stated, *(buffer.adapter for buffer in self.buffers if buffer.adapter is not None)]
        return tuple(stated.get(number, 1.0) for number in range(1 + max(numbers, default=-1)))

    def with_precision(self, precision: Precision) -> ModelSpec:
        """The same model with products and attention of this precision."""

        def changed(op: Op) -> Op:
            return replace(op, precision=precision) if isinstance(op, MatMul | Attention) else op

        stages = (replace(stage, ops=tuple(map(changed, stage.ops))) for stage in self.stages)
        return replace(self, stages=tuple(stages))

    def without_adapters(self, unused: frozenset[int]) -> ModelSpec:
        """The same model without the ops of these LoRA adapters."""
        own = {buffer.name for buffer in self.buffers if buffer.adapter in unused}
        stages = []
        for stage in self.stages:
            ops = (op.without_adapters(unused) if isinstance(op, Experts) else op for op in stage.ops)
            kept = tuple(op for op in ops if own.isdisjoint((*op.reads, *op.writes)))
            stages.append(replace(stage, ops=kept))
        return replace(self, stages=tuple(stages))

    def without_deep_rows(self) -> ModelSpec:
        """The same model without what adds further parts of rows, for passes that have no rows."""
        own = {op.out for op in self.ops() if isinstance(op, DeepRows)}
        if not own:
            return self
        stages = (
            replace(stage, ops=tuple(op for op in stage.ops if own.isdisjoint((*op.reads, *op.writes))))
            for stage in self.stages
        )
        return replace(self, stages=tuple(stages))

    def without_products(self, weights: Collection[Weight]) -> ModelSpec:
        """The same model without its products with these weights: to count the memory of the others."""
        stages = (
            replace(stage, ops=tuple(op for op in stage.ops if not (isinstance(op, MatMul) and op.weight in weights)))
            for stage in self.stages
        )
        return replace(self, stages=tuple(stages))

    @property
    def is_causal(self) -> bool:
        """Whether tokens attend only to earlier ones; else texts are read as a whole and nothing can be generated."""
        return all(op.causal for op in self.ops() if isinstance(op, Attention))

    @property
    def rope_border(self) -> int | None:
        """The context above which rotary factors for long texts are used; None for models without such (LongRoPE)."""
        tables = (op.table for op in self.ops() if isinstance(op, Rope))
        return next((table.original_context for table in tables if table.scaling == "longrope"), None)

    @property
    def n_context_most(self) -> int:
        """The longest context for which the model was trained and the spec is right."""
        return min(self.n_context_trained, self.limit.n_tokens if self.limit else self.n_context_trained)

    @property
    def n_context_usual(self) -> int:
        """The context if none is asked for, as far as the model is concerned: no factors for long texts are needed."""
        return min(self.n_context_most, self.rope_border or self.n_context_most)

    @property
    def why_whole(self) -> str | None:
        """Why a single device must run the whole model; None if several may share it."""
        if self.has_experts:
            return "is a mixture of experts"
        if self.inputs.row_width:
            return "is opened for rows of numbers"
        if any(isinstance(op, TokenRows) for op in self.ops()):
            return "looks up tokens for each layer"
        if self.shares_kv:
            return "has layers that attend to the keys and values of others"
        return "has states besides keys and values" if self.states else None

    @property
    def shares_kv(self) -> bool:
        """Whether some layers attend to the KV cache of an earlier layer and have none of their own."""
        layers = [op.layer for op in self.ops() if isinstance(op, Attention)]
        return len(set(layers)) < len(layers)

    @property
    def reads_kv(self) -> bool:
        """Whether it attends to the KV caches of another model, by their numbers there, and has none of its own."""
        return not self.kv and any(isinstance(op, Attention) for op in self.ops())

    def matrices(self) -> Iterator[Weight]:
        """The weights that are matrices, not vectors."""
        for op in self.ops():
            yield from op.matrices

    def buffer(self, name: str) -> Buffer:
        """The buffer with that name."""
        return next(buffer for buffer in self.buffers if buffer.name == name)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's states over all layers."""
        return sum(state.nbytes for state in self.states)

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Bytes of one cached token over all layers (keys and values), at `element_bytes` per number."""
        return sum(layer.numbers * element_bytes for layer in self.kv)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Consecutive ops that run on one device.

    spec     the ops as stages, the buffers they use and the KV layers they own, numbered from 0
    inputs   buffers whose rows are supplied at each step
    outputs  buffers whose rows are read after the step; a buffer may be both input and output
    spare    weights that a plan leaves in the machine's memory: these are moved out first if device memory is short
    """

    spec: ModelSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    spare: frozenset[Weight] = frozenset()


def whole(spec: ModelSpec) -> Fragment:
    """A model as a single fragment."""
    return Fragment(spec, (), (spec.logits,))
