"""ModelSpec: a whole model as data: its sizes, its buffers and its ops stage by stage.

Built by an architecture from GGUF metadata alone (no weights needed), read by devices, the planner and `plan`.
Knows nothing of where the weights lie or what runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgeinfer.graph.buffers import Buffer
from edgeinfer.graph.inputs import Inputs
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.experts import Experts
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.state import LayerState, PagedKV
from edgeinfer.graph.weights import Weight


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive ops that are placed together: "embed", "blk.0", …, "head"."""

    name: str
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class RankHead:
    """What makes scores of a hidden row: tanh of a product, if there is one, and a product; each with its bias."""

    dense: tuple[Weight | None, Weight | None]
    out: tuple[Weight, Weight | None]

    def weights(self) -> Iterator[Weight]:
        """Those that there are."""
        yield from (weight for weight in (*self.dense, *self.out) if weight is not None)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model. `head_width` is that of its keys. Its last op writes the result into the buffer `logits`:
    float32[O, n_vocab], or hidden rows where a model has no logits. `dense`: matrices that a pooled row of hidden
    states is multiplied by, one after the other. `rank`: what a reranker makes of a row.
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

    def ops(self) -> Iterator[Op]:
        """Every op in order."""
        for stage in self.stages:
            yield from stage.ops

    def weights(self) -> Iterator[Weight]:
        """Every weight the ops read, once per op that reads it (a tied head names the embedding again)."""
        for op in self.ops():
            yield from op.matrices
            yield from op.vectors

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return any(isinstance(op, Experts) for op in self.ops())

    @property
    def output_width(self) -> int:
        """Width of the rows that a pass gives: the vocabulary, or that of hidden rows."""
        return self.buffer(self.logits).width

    @property
    def inputs(self) -> Inputs:
        """What passes may be given besides token ids."""
        takes_rows = any(isinstance(op, Embed) and op.rows for op in self.ops())
        takes_axes = any(isinstance(op, Rope) and op.sections is not None for op in self.ops())
        return Inputs(self.width if takes_rows else 0, takes_axes)

    @property
    def is_causal(self) -> bool:
        """Whether no token sees those after it; else texts are read as a whole, and none is written."""
        return all(op.causal for op in self.ops() if isinstance(op, Attention))

    @property
    def why_whole(self) -> str | None:
        """Why one device must run all of it; None where several may share it."""
        if self.has_experts:
            return "is a mixture of experts"
        if self.inputs.row_width:
            return "is opened for rows of numbers"
        if self.shares_kv:
            return "has layers that attend to the keys and values of others"
        return "has states besides keys and values" if self.states else None

    @property
    def shares_kv(self) -> bool:
        """Whether layers attend to the keys and values that an earlier one keeps, and keep none."""
        layers = [op.layer for op in self.ops() if isinstance(op, Attention)]
        return len(set(layers)) < len(layers)

    def matrices(self) -> Iterator[Weight]:
        """Those of the weights that are matrices: rows of numbers, not single ones."""
        for op in self.ops():
            yield from op.matrices

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        return next(buffer for buffer in self.buffers if buffer.name == name)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's states over all layers."""
        return sum(state.nbytes for state in self.states)

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Bytes one cached token takes over all layers (keys and values), at `element_bytes` per number."""
        return sum(layer.numbers * element_bytes for layer in self.kv)
