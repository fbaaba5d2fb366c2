"""Models whose small activations count as zero: how `--approx` changes a model.

In: a ModelSpec and a threshold. Out: the ModelSpec of the approximate model. Applies only to the activations of
feed-forward networks with SiLU or GELU: ReLU networks have exact zeros already, and neurons of experts are not
distinguished. Independent of files and of what is read from where.
"""

from __future__ import annotations

import math
from dataclasses import replace

from edgeinfer.errors import BadSetting, UnsupportedModel
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.op import Op
from edgeinfer.graph.ops.act import Act
from edgeinfer.graph.ops.gated_act import GatedAct

SMOOTH = ("silu", "gelu_tanh")
"""Activations that are never exactly zero over a range."""
LARGEST, SMALLEST = 1e30, 1e-30
"""Thresholds are compared as float32."""


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


def refuse_thresholds(spec: ModelSpec, device: str) -> None:
    """Raises UnsupportedModel for a device that computes all activations unchanged."""
    if has_threshold(spec):
        raise UnsupportedModel(f"{device} does not leave small activations out; --device cpu runs --approx")


def told(threshold: float) -> str:
    """What the user must be told about answers of such a model."""
    return (
        f"approx {threshold:g}: activations of a magnitude below {threshold:g} count as zero, so the text is not what "
        "the model itself would say"
    )


def _cut(op: Op, threshold: float) -> Op:
    if isinstance(op, GatedAct | Act) and op.activation in SMOOTH:
        return replace(op, threshold=threshold)
    return op
