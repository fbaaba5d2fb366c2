"""Trained heads: small networks beside a model that guess tokens beyond the next one from the model's hidden rows.

In: a file whose last blocks are such heads (multi-token prediction, MTP), a block's ops from its family. Out: the
head's own ModelSpec, which reads token ids and hidden rows (`Batch.hidden`), and the model's spec with these rows in a
buffer. Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2. Independent of families and of who runs heads; `eagle3` has
the other kind of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgeinfer.errors import UnsupportedModel
from edgeinfer.graph.graph import ModelSpec, Stage
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer, Rows
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.hidden_rows import HiddenRows
from edgeinfer.graph.ops.join_parts import JoinParts
from edgeinfer.graph.ops.layer_norm import LayerNorm
from edgeinfer.graph.ops.matmul import MatMul
from edgeinfer.graph.ops.rms_norm import RMSNorm
from edgeinfer.graph.ops.take_outputs import TakeOutputs
from edgeinfer.models.hyperparameters import Hyperparameters
from edgeinfer.models.model_graph import ModelGraph
from edgeinfer.models.sizes import GUESSING

X = "x"
"""The buffer of the residual stream."""
HIDDEN = "hidden_rows"
"""The buffer of the model's hidden rows that a head reads, one for each token of a pass."""


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """A head that drafts for a model.

    spec        its ops; it reads a token with the model's hidden row of the token before, or with its own
    taps        layers of the model whose input rows it reads, joined; (): the last rows
    is_normed   whether these are normed
    next_rows   the buffer of its own rows of requested outputs
    apart       columns of the model's rows in `Batch.hidden` if its own rows have columns of their own, after them
    vocabulary  the tensor with the model's token for each of its own tokens; "" if they are the same
    later       further heads, each of which guesses one token further, from the rows of the one before it
    """

    spec: ModelSpec
    taps: tuple[int, ...] = ()
    next_rows: str = "normed_out"
    apart: int = 0
    vocabulary: str = ""
    later: tuple[TrainedHead, ...] = ()
    is_normed: bool = True

    @property
    def blocks(self) -> tuple[TrainedHead, ...]:
        """It and the later ones, in order."""
        return (self, *self.later)


def in_chain(blocks: Sequence[TrainedHead]) -> TrainedHead:
    """Heads of one file as the first of them, of which all but the last show the rows that the next one reads."""
    shown = [replace(block, spec=with_hidden(block.spec, is_normed=block.is_normed)) for block in blocks[:-1]]
    first, *later = *shown, blocks[-1]
    return replace(first, later=tuple(later))


def has_head(hp: Hyperparameters) -> bool:
    """Whether a file holds the head `hp.guess`: some say how many they have, and leave out the blocks."""
    return f"{head_prefix(hp)}nextn.eh_proj.weight" in hp.tensors


def next_token_head(g: ModelGraph, block: Callable[[ModelGraph], None], *, is_normed: bool = True) -> TrainedHead:
    """The MTP block `hp.guess` of a file. `g`: an empty graph whose sizes count MTP blocks as layers.

    A token's embedding and the model's hidden row for the token before it are normed, joined and projected; a layer
    like the model's follows, whose ops `block` adds, then a norm and an output product, which may be the model's.
    `is_normed`: whether hidden rows, the model's and its own, are normed before they are given to a head.
    """
    hp, width, vocabulary = g.hp, g.sizes.width, g.sizes.n_vocab
    stage = head_prefix(hp).removesuffix(".")
    g.stage("embed", f"{stage}.")
    embedded, given = g.buffer("embedded", width), g.buffer("given", width)
    joined, x = g.buffer("joined", 2 * width), g.buffer("x", width)
    own = f"{stage}.nextn.embed_tokens.weight"
    table = hp.matrix(own if own in hp.tensors else "token_embd.weight", (vocabulary, width))
    g.add(Embed(table, embedded), HiddenRows(given, width))
    g.stage(stage)
    for name, rows in (("enorm", embedded), ("hnorm", given)):
        g.add(RMSNorm(rows, rows, hp.vector(f"{stage}.nextn.{name}.weight", width), width, g.sizes.epsilon))
    g.add(JoinParts((embedded, given), joined, width))
    g.add(MatMul(joined, x, hp.matrix(f"{stage}.nextn.eh_proj.weight", (width, 2 * width))))
    block(g)
    _head(g, stage)
    next_rows = "normed_out" if is_normed else "x_out"
    return TrainedHead(replace(g.spec(), n_layers=1), next_rows=next_rows, is_normed=is_normed)


def with_hidden(spec: ModelSpec, taps: Sequence[int] = (), *, is_normed: bool = True) -> ModelSpec:
    """A model that also writes hidden rows of all tokens of a pass to the buffer HIDDEN.

    `taps`: layers whose input rows are joined; (): the last rows, normed or not. Raises UnsupportedModel for a model
    that has no such rows.
    """
    return _with_taps(spec, taps) if taps else _with_last(spec, is_normed=is_normed)


def _with_taps(spec: ModelSpec, taps: Sequence[int]) -> ModelSpec:
    """The model with copies of the rows that these layers read."""
    width, names = spec.width, {f"blk.{layer}": f"tap {layer}" for layer in taps}
    if Buffer(X, width) not in spec.buffers or not names.keys() <= {stage.name for stage in spec.stages}:
        raise UnsupportedModel(f"{spec.architecture} has no rows before layers {list(taps)}, which a head reads")
    stages = [
        replace(stage, ops=(JoinParts((X,), names[stage.name], width), *stage.ops)) if stage.name in names else stage
        for stage in spec.stages
    ]
    joined = JoinParts(tuple(f"tap {layer}" for layer in taps), HIDDEN, width)
    stages[-1] = replace(stages[-1], ops=(joined, *stages[-1].ops))
    added = (*(Buffer(name, width) for name in names.values()), Buffer(HIDDEN, len(taps) * width))
    return replace(spec, stages=tuple(stages), buffers=(*spec.buffers, *added))


def _with_last(spec: ModelSpec, *, is_normed: bool) -> ModelSpec:
    """The model with a norm of its last rows, as its output product reads them, or with these rows as they are."""
    last = spec.stages[-1]
    taken = next((op for op in last.ops if isinstance(op, TakeOutputs)), None)
    norms = (op for op in last.ops if isinstance(op, RMSNorm | LayerNorm) and taken and op.source == taken.out)
    norm = next(norms, None)
    if taken is None or norm is None:
        raise UnsupportedModel(f"{spec.architecture} has no norm before its output product, whose rows a head reads")
    plain = JoinParts((taken.source,), HIDDEN, spec.width)
    shown: Op = replace(norm, source=taken.source, out=HIDDEN) if is_normed else plain
    stages = (*spec.stages[:-1], Stage(last.name, (shown, *last.ops)))
    return replace(spec, stages=stages, buffers=(*spec.buffers, Buffer(HIDDEN, spec.width)))


def _head(g: ModelGraph, stage: str) -> None:
    """Norm and output product of the requested rows; tensors that the block lacks are the model's."""
    hp, width, vocabulary = g.hp, g.sizes.width, g.sizes.n_vocab
    g.stage("head")
    names = f"{stage}.nextn.shared_head_head.weight", "output.weight", "token_embd.weight"
    output = next(name for name in names if name in hp.tensors)
    norms = f"{stage}.nextn.shared_head_norm.weight", f"{stage}.layer_output_norm.weight", "output_norm.weight"
    weight = hp.vector(next(name for name in norms if name in hp.tensors or name == norms[-1]), width)
    taken, normed = g.buffer("x_out", width, Rows.OUTPUTS), g.buffer("normed_out", width, Rows.OUTPUTS)
    logits = g.buffer("logits", vocabulary, Rows.OUTPUTS)
    g.add(TakeOutputs("x", taken, width), RMSNorm(taken, normed, weight, width, g.sizes.epsilon))
    g.add(MatMul(normed, logits, hp.matrix(output, (vocabulary, width))))


def head_prefix(hp: Hyperparameters) -> str:
    """What the names of the tensors of the MTP block `hp.guess` begin with."""
    return f"blk.{hp.integer('block_count') - hp.integer(GUESSING, 0, least=0) + hp.guess}."
