"""Parts of a model that one device runs between two exchanges of activations.

In: a ModelSpec and the ops of a part. Out: a `Fragment`: a spec of its own, with the buffers that enter and leave it. A
whole model is a fragment with no inputs, whose output is the logits. Independent of devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.weights import Weight


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
