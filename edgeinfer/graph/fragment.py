"""Parts of a model that one device runs between two exchanges of activations.

In: a ModelSpec and the ops of a part. Out: a `Fragment`: a spec of its own, with the buffers that enter and leave it.
A whole model is the fragment that nothing enters and whose logits leave. Knows nothing of devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.graph import ModelSpec
from edgeinfer.graph.weights import Weight


@dataclass(frozen=True, slots=True)
class Fragment:
    """Ops that run one after the other on one device.

    spec     the ops as stages, the buffers they touch and the KV layers they keep, numbered from 0
    inputs   buffers whose rows are given at each step
    outputs  buffers whose rows are read after it; one may be both
    spare    weights that a plan leaves in the machine's memory: where a device's own is short, they go first
    """

    spec: ModelSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    spare: frozenset[Weight] = frozenset()


def whole(spec: ModelSpec) -> Fragment:
    """A model as one fragment."""
    return Fragment(spec, (), (spec.logits,))
