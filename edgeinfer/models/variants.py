"""Variants of a model's graph: rows in place of token ids, activations that count as zero, blocks with a budget.

In: a ModelSpec; what its file says about axes (`rope.dimension_sections`) and parts of rows (`n_deepstack_layers`), and
its family about images, or what `--approx` says. Out: a ModelSpec whose ops declare rows, three positions per token,
spans, the threshold or the budget; devices without these refuse it by name.
Thresholds apply only to the activations of feed-forward networks with SiLU or GELU: ReLU networks have exact zeros
already, and neurons of experts are not distinguished. Independent of files, of what produces rows and of what is read
from where. Sources: Qwen2-VL (arXiv 2409.12191), Qwen3-VL (arXiv 2511.21631).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edgeinfer.approximation import Approximation
from edgeinfer.errors import BadGGUF, BadSetting, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.operands import Buffer
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.add import Add
from edgeinfer.graph.ops.attention import Attention
from edgeinfer.graph.ops.deep_rows import DeepRows
from edgeinfer.graph.ops.embed import Embed
from edgeinfer.graph.ops.gated_act import GatedAct
from edgeinfer.graph.ops.rope import Rope
from edgeinfer.graph.rotary import RopeSections
from edgeinfer.graph.step import AXES
from edgeinfer.models.hyperparameters import Hyperparameters

KEY = "rope.dimension_sections"
DEEP = "n_deepstack_layers"


@dataclass(frozen=True, slots=True)
class WholeRows:
    """Images of a family whose rows see each other, in all layers or only in those with a window; `most` rows each."""

    most: int
    windows_only: bool = False


SMOOTH = ("silu", "gelu_tanh")
"""Activations that are never exactly zero over a range."""
NOT_EXACT = "so the text is not what the model itself would say"
LARGEST, SMALLEST = 1e30, 1e-30
"""Thresholds are compared as float32."""


def with_rows(
    spec: ModelSpec,
    hp: Hyperparameters,
    axes: Literal["contiguous", "interleaved"] | None,
    whole: WholeRows | None = None,
) -> ModelSpec:
    """The model prepared for rows of numbers. `axes`: how files of its family arrange axes.

    `whole`: where rows of an image see each other, if they do. Raises BadGGUF for invalid sections, UnsupportedModel if
    edgeinfer does not know what they mean.
    """
    sections = _sections(hp, axes)
    stages = tuple(
        replace(stage, ops=tuple(_open(op, sections, hp, whole) for op in stage.ops)) for stage in spec.stages
    )
    return _deepened(replace(spec, stages=stages, most_whole=0 if whole is None else whole.most), hp)


def _deepened(spec: ModelSpec, hp: Hyperparameters) -> ModelSpec:
    """The model with rows of several parts, of which all but the first are added after layers, from the first on.

    Raises BadGGUF if there are as many parts as layers.
    """
    n_parts = hp.integer(DEEP, 0, least=0)
    if n_parts >= spec.n_layers:
        raise BadGGUF(f"{hp.architecture}.{DEEP} is {n_parts}, of {spec.n_layers} layers")
    stages = {stage.name: stage for stage in spec.stages}
    embedding = next(stage for stage in spec.stages if any(isinstance(op, Embed) for op in stage.ops))
    buffers = []
    for number in range(n_parts):
        name, layer = f"deep rows {number}", stages[f"blk.{number}"]
        buffers.append(Buffer(name, spec.width))
        embedding = replace(embedding, ops=(*embedding.ops, DeepRows(name, spec.width, (1 + number) * spec.width)))
        stages[layer.name] = replace(layer, ops=(*layer.ops, Add(name, "x", spec.width)))
    stages[embedding.name] = embedding
    return replace(spec, stages=tuple(stages.values()), buffers=(*spec.buffers, *buffers))


def _open(op: Op, sections: RopeSections | None, hp: Hyperparameters, whole: WholeRows | None) -> Op:
    if isinstance(op, Embed):
        return replace(op, rows=True)
    if isinstance(op, Attention) and whole is not None and (op.window is not None or not whole.windows_only):
        return replace(op, spans=True)
    if isinstance(op, Rope) and sections is not None:
        pairs, total = op.table.rotary_width // 2, sections.temporal + sections.height + sections.width
        if total != pairs:
            raise BadGGUF(f"{hp.architecture}.{KEY} has {total} pairs in all; the heads of the file have {pairs}")
        return replace(op, sections=sections)
    return op


def _sections(hp: Hyperparameters, axes: Literal["contiguous", "interleaved"] | None) -> RopeSections | None:
    """The sections in the file; None if all pairs are rotated by a single position."""
    if not hp.has(KEY):
        return None
    values = hp.metadata.get(f"{hp.architecture}.{KEY}")
    if not isinstance(values, np.ndarray) or not np.issubdtype(values.dtype, np.integer) or len(values) not in (3, 4):
        raise BadGGUF(f"{hp.architecture}.{KEY} must be an array of three or four whole numbers")
    found = [int(value) for value in values]
    if min(found) < 0:
        raise BadGGUF(f"{hp.architecture}.{KEY} is {found}; none may be below zero")
    if not any(found[1:]):
        return None
    if any(found[AXES:]):
        raise UnsupportedModel(f"{hp.architecture}.{KEY} has a fourth axis ({found}); edgeinfer has three")
    if axes is None:
        raise UnsupportedModel(
            f"{hp.architecture} has a rotary embedding of several axes ({KEY}), whose order edgeinfer does not know; "
            "load it without rows=True for texts"
        )
    temporal, height, width = found[:AXES]
    return RopeSections(temporal, height, width, axes == "interleaved")


def with_threshold(spec: ModelSpec, threshold: float) -> ModelSpec:
    """The model with activations of magnitude below `threshold` set to zero.

    Raises BadSetting for an invalid threshold, and if the model has no activation that it applies to.
    """
    check_threshold(threshold)
    stages = tuple(replace(stage, ops=tuple(_cut(op, threshold) for op in stage.ops)) for stage in spec.stages)
    found = replace(spec, stages=stages)
    if not has_threshold(found):
        what = "are those of experts" if spec.has_experts else "have exact zeros, which are left out without it"
        raise BadSetting(
            f"approx has nothing to leave out in {spec.architecture}: it is for feed-forward networks with SiLU or "
            f"GELU, and the activations of this model {what}; run it without --approx"
        )
    return found


def with_block_budget(spec: ModelSpec, budget: int) -> ModelSpec:
    """The model with blocks of prompts that attend to about `budget` positions, in layers without a window.

    Raises BadSetting if no layer attends to all that was before, or if rows see each other in such layers.
    """
    if any(isinstance(op, Attention) and op.spans and op.window is None for op in spec.ops()):
        raise BadSetting(
            f"approx prefill is not for {spec.architecture} with images, whose rows see each other in layers without a "
            "window; leave it out, or load the model for texts alone"
        )
    stages = tuple(replace(stage, ops=tuple(_within(op, budget) for op in stage.ops)) for stage in spec.stages)
    found = replace(spec, stages=stages)
    if found == spec:
        raise BadSetting(
            f"approx prefill has nothing to leave out in {spec.architecture}, of which no layer attends to all that "
            "was before; run it without"
        )
    return found


def block_budget_of(spec: ModelSpec) -> int | None:
    """How many positions blocks of prompts attend to, if that is limited."""
    return next((op.block_budget for op in spec.ops() if isinstance(op, Attention) and op.block_budget), None)


def check_threshold(threshold: float) -> None:
    """Raises BadSetting unless it is a finite number above zero that fits in a float32."""
    if not (math.isfinite(threshold) and SMALLEST <= threshold <= LARGEST):
        raise BadSetting(f"approx cannot be {threshold!r}: use a finite number above 0 (at least 1e-30), such as 0.05")


def has_threshold(spec: ModelSpec) -> bool:
    """Whether some activations of a model are cut at a threshold."""
    return threshold_of(spec) is not None


def threshold_of(spec: ModelSpec) -> float | None:
    """The threshold that activations of a model are cut at, if any."""
    return next((op.threshold for op in spec.ops() if isinstance(op, GatedAct | Act) and op.threshold), None)


def approximation_of(spec: ModelSpec) -> Approximation:
    """What a model's graph leaves out."""
    return Approximation(threshold_of(spec), prefill=block_budget_of(spec))


def refuse_thresholds(spec: ModelSpec, device: str) -> None:
    """Raises UnsupportedModel for a device that computes all activations unchanged."""
    if has_threshold(spec):
        raise UnsupportedModel(f"{device} does not leave small activations out; --device cpu runs --approx")


def told(approx: Approximation, n_context: int) -> tuple[str, ...]:
    """What the user must be told about answers of a model of which something is left out, for a context."""
    found: tuple[str, ...] = ()
    if approx.threshold is not None:
        threshold = f"{approx.threshold:g}"
        found += (f"approx {threshold}: activations of a magnitude below {threshold} count as zero, {NOT_EXACT}",)
    for name, budget, who in (
        ("kv", approx.kv, "tokens of answers"),
        ("prefill", approx.prefill, "blocks of long prompts"),
    ):
        if budget is not None and budget >= n_context:
            found += (f"approx {name}={budget} leaves nothing out: the context has {n_context} tokens",)
        elif budget is not None:
            found += (f"approx {name}={budget}: {who} attend to about {budget} of the tokens before, {NOT_EXACT}",)
    return found


def _within(op: Op, budget: int) -> Op:
    if isinstance(op, Attention) and op.causal and op.window is None:
        return replace(op, block_budget=budget)
    return op


def _cut(op: Op, threshold: float) -> Op:
    if isinstance(op, GatedAct | Act) and op.activation in SMOOTH:
        return replace(op, threshold=threshold)
    return op
