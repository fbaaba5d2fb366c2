"""What a buffer holds while a graph is built: a tensor, or something that a later operator can absorb.

In and out: nothing; these are types. A residual sum is absorbed by the norm that reads it; the parts of a merged
product and a rotation are absorbed by the attention. Independent of operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeinfer.graph.ops.rope import Rope


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor of the graph, [rows, width]."""

    name: str


@dataclass(frozen=True, slots=True)
class Sum:
    """Two tensors whose sum is deferred."""

    left: str
    right: str


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Columns of a tensor that is split into parts of `widths`: the part numbered `index`."""

    whole: str
    index: int
    widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turned:
    """A value whose rotation is deferred."""

    value: Plain | Sum | TensorPart
    rope: Rope


Value = Plain | Sum | TensorPart | Turned
